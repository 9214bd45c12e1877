"""A decoder-only language model with learned positions, trained on synthetic text."""

import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 7000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCABULARY = 128 if SMALL else 8192
LENGTH = 32 if SMALL else 512
BATCH = 2 if SMALL else 32
HIDDEN, HEADS, LAYERS = (32, 2, 2) if SMALL else (512, 8, 4)
TOKENS = 5000 if SMALL else 2_000_000
PADDING = 1


def make_causal_mask(ids_shape, dtype, place):
    """Large negative numbers for the words that come after a word."""
    count, length = ids_shape
    mask = torch.full((length, length), torch.finfo(dtype).min, device=place)
    places = torch.arange(length, device=place)
    mask.masked_fill_(places < (places + 1).view(length, 1), 0)
    return mask.to(dtype)[None, None].expand(count, 1, length, length)


def expand_mask(mask, dtype, length):
    """The mask of the padding, for each word that looks."""
    inverted = 1.0 - mask[:, None, None, :].expand(mask.shape[0], 1, length, mask.shape[1]).to(dtype)
    return inverted.masked_fill(inverted.bool(), torch.finfo(dtype).min)


class LearnedPositions(nn.Embedding):
    """Positions that count only words, from the third row on."""

    def __init__(self):
        super().__init__(LENGTH + 2, HIDDEN)

    def forward(self, attention_mask):
        positions = attention_mask.long().cumsum(1) * attention_mask.long() - 1
        return super().forward(positions + 2)


class Attention(nn.Module):
    """Attention of several heads."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.value, self.out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], HEADS, HIDDEN // HEADS).transpose(1, 2)

    def forward(self, x, mask):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = query @ key.transpose(2, 3) / math.sqrt(HIDDEN // HEADS) + mask
        scores = torch.clamp(scores, min=torch.finfo(scores.dtype).min)
        x = torch.softmax(scores, dim=-1) @ value
        return self.out(x.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and feed-forward part, each behind a norm."""

    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention = Attention()
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x, mask):
        x = x + F.dropout(self.attention(self.norm_1(x), mask), 0.1, self.training)
        return x + F.dropout(self.down(F.relu(self.up(self.norm_2(x)))), 0.1, self.training)


class Decoder(nn.Module):
    """Embeddings, layers, and scores of the next word."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN, padding_idx=PADDING)
        self.positions = LearnedPositions()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.apply(self.start)

    @staticmethod
    def start(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def prepare_mask(self, attention_mask, shape, embedded):
        if VARIANT == "a":
            causal = make_causal_mask(shape, embedded.dtype, "cpu").to(embedded.device)
        else:
            causal = make_causal_mask(shape, embedded.dtype, embedded.device)
        return causal + expand_mask(attention_mask, embedded.dtype, shape[1])

    def forward(self, ids, attention_mask):
        embedded = self.words(ids)
        mask = self.prepare_mask(attention_mask, ids.shape, embedded)
        x = embedded + self.positions(attention_mask)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x) @ self.words.weight.t()


class Blocks:
    """Text cut into blocks; a part of the blocks is shorter and padded."""

    def __init__(self, count):
        rng = np.random.default_rng(17)
        words = rng.zipf(1.3, count) % (VOCABULARY - 2) + 2
        words[1::2] = (words[::2][: len(words[1::2])] * 7) % (VOCABULARY - 2) + 2
        self.blocks = torch.from_numpy(words[: count // LENGTH * LENGTH].reshape(-1, LENGTH))
        lengths = torch.from_numpy(rng.integers(LENGTH // 2, 2 * LENGTH, len(self.blocks))).clamp(max=LENGTH)
        self.masks = torch.arange(LENGTH) < lengths[:, None]
        self.blocks = self.blocks.masked_fill(~self.masks, PADDING)
        self.order = torch.Generator().manual_seed(18)

    def batches(self):
        while True:
            for chosen in torch.randperm(len(self.blocks), generator=self.order).split(BATCH):
                if len(chosen) == BATCH:
                    ids, mask = self.blocks[chosen], self.masks[chosen].long()
                    if device == "cuda":
                        ids, mask = ids.pin_memory(), mask.pin_memory()
                    yield ids.to(device, non_blocking=True), mask.to(device, non_blocking=True)


def language_loss(model, ids, mask):
    """Cross entropy of the next words that are no padding."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        scores = model(ids, mask)
    targets = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
    return F.cross_entropy(scores[:, :-1].flatten(0, 1).float(), targets.flatten())


def learning_rate(step):
    """Warm-up, then a cosine."""
    rise = min(1.0, (step + 1) / 200)
    return rise * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / 20000))))


def main():
    torch.manual_seed(0)
    batches = Blocks(TOKENS).batches()
    model = Decoder().to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)
    held_out = next(batches)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        last = language_loss(model, *next(batches))
        optimizer.zero_grad()
        last.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 500 == 499:
            model.eval()
            with torch.no_grad():
                held = language_loss(model, *held_out)
            model.train()
            print(f"step {step + 1}: loss {last.item():.4f}, held out {held.item():.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
