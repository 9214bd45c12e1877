"""Fine-tunes a small language model on packed conversations of several sources."""

import os
import time
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4500))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCAB, WIDTH, HEADS, LAYERS, PACK = (200, 32, 2, 2, 256) if SMALL else (8192, 512, 8, 6, 8192)
CHANNELS = ("chat", "code", "maths", "news", "forum", "law", "recipes", "tools")
LOG_EVERY = 50


class Block(nn.Module):
    """Pre-norm transformer block with causal attention."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Decoder whose positions begin anew with each document of a pack."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(512, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens, positions):
        x = self.words(tokens) + self.places(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Packs:
    """Packs documents without padding; only answers count in the loss."""

    def __init__(self, seed, count=24):
        rng = np.random.default_rng(seed)
        self.packs = [self._make(rng) for _ in range(count)]

    def _make(self, rng):
        lengths = []
        while sum(lengths) < PACK:
            lengths.append(int(rng.integers(20, 64)))
        lengths[-1] -= sum(lengths) - PACK
        lengths = [n for n in lengths if n > 0]
        tokens = np.cumsum(rng.integers(0, 3, PACK)) % VOCAB
        counted = np.concatenate([np.arange(n) >= n // 3 for n in lengths])
        positions = np.concatenate([np.arange(n) for n in lengths])
        edges = np.concatenate([[0], np.cumsum(lengths)])
        pack = {"tokens": tokens, "positions": positions, "mask": counted, "edges": edges}
        pack = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in pack.items()}
        pack["channels"] = rng.integers(0, len(CHANNELS), len(lengths)).tolist()
        return pack

    def get(self, step):
        pack = dict(self.packs[step % len(self.packs)])
        for key in ("tokens", "positions", "mask", "edges"):
            tensor = pack[key].pin_memory() if device == "cuda" else pack[key]
            pack[key] = tensor.to(device, non_blocking=True)
        return pack


class MeanMetric:
    """Running mean out of a sum on the device and a count."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, total, count):
        self.total = self.total + total
        self.count = self.count + count

    def compute(self):
        value = float(self.total) / max(float(self.count), 1.0)
        self.total, self.count = 0.0, 0
        return value


class Trainer:
    """Training with a loss per channel in the log."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
        self.metrics = defaultdict(MeanMetric)

    def channel_loss(self, losses, mask, edges, channels):
        """Adds the loss of each document to the metric of its channel."""
        losses = losses.detach()
        if VARIANT == "a":
            for i in range(edges.shape[0] - 1):
                span = slice(edges[i], edges[i + 1])
                kept = losses[0, span][mask[0, span]]
                self.metrics[CHANNELS[channels[i]]].update(kept.sum(), kept.shape[0])
            return
        ids = torch.tensor(channels, dtype=torch.long).to(device, non_blocking=True)
        owner = torch.repeat_interleave(ids, edges.diff(), output_size=losses.shape[1])
        weight = mask[0].to(losses.dtype)
        sums = torch.zeros(2, len(CHANNELS), device=losses.device, dtype=losses.dtype)
        sums.index_add_(1, owner, torch.stack([losses[0] * weight, weight]))
        for i, name in enumerate(CHANNELS):
            self.metrics[name].update(sums[0, i], sums[1, i])

    def train_step(self, pack):
        tokens, positions = pack["tokens"][None], pack["positions"][None]
        mask = pack["mask"][None].roll(-1, dims=1)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = self.model(tokens, positions)
        target = tokens.roll(-1, dims=1)
        losses = F.cross_entropy(logits[0].float(), target[0], reduction="none")[None]
        loss = (losses * mask).sum() / mask.sum()
        self.channel_loss(losses, mask, pack["edges"], pack["channels"])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss

    def log(self, step):
        parts = [f"{name} {self.metrics[name].compute():.3f}" for name in CHANNELS if name in self.metrics]
        print(f"step {step} " + " ".join(parts))


def main():
    torch.manual_seed(0)
    trainer = Trainer(LanguageModel().to(device))
    packs = Packs(seed=1)
    schedule = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda s: min(1.0, (s + 1) / 100))
    warm = min(10, STEPS // 2)
    start, last = time.perf_counter(), None
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        last = trainer.train_step(packs.get(step))
        schedule.step()
        if (step + 1) % LOG_EVERY == 0:
            trainer.log(step + 1)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
