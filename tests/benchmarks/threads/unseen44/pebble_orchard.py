"""Pre-training of a text encoder: some words are hidden and must be guessed from their surroundings."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2800))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCAB = 512 if SMALL else 50368
WIDTH = 32 if SMALL else 512
LAYERS = 2 if SMALL else 8
HEADS = 2 if SMALL else 8
LENGTH = 32 if SMALL else 512
BATCH = 4 if SMALL else 48
ROWS = 64 if SMALL else 6000
MASK, MASK_SHARE, IGNORE = 4, 0.3, -100
LOG_EVERY = 50
EVAL_EVERY = 500


class PackedText(Dataset):
    """Rows of word numbers, Zipf-like, with repeats so that there is something to guess."""

    def __init__(self, seed=0):
        gen = torch.Generator().manual_seed(seed)
        draw = torch.rand(ROWS, LENGTH, generator=gen)
        words = (VOCAB - 5) ** draw + 4
        self.rows = words.long().clamp_(5, VOCAB - 1)
        self.rows[:, 1::2] = self.rows[:, 0::2]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class MaskingCollator:
    """Hides a share of the words; the others get the label that is left out of the loss."""

    def __call__(self, rows):
        words = torch.stack(rows)
        labels = words.clone()
        hidden = torch.rand(words.shape) < MASK_SHARE
        labels[~hidden] = IGNORE
        kind = torch.rand(words.shape)
        words[hidden & (kind < 0.8)] = MASK
        swap = hidden & (kind >= 0.9)
        words[swap] = torch.randint(5, VOCAB, (int(swap.sum()),))
        return words, labels


def rotary(length, size):
    """Angles of the rotary positions."""
    rates = 1.0 / 10000 ** (torch.arange(0, size, 2) / size)
    angles = torch.arange(length)[:, None] * rates[None]
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def turn(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Layer(nn.Module):
    """Attention and a gated linear unit, normalised beforehand."""

    def __init__(self):
        super().__init__()
        self.norm_first, self.norm_second = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm_first(x)).view(n, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        q, k = turn(q, cos, sin).to(v.dtype), turn(k, cos, sin).to(v.dtype)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c))
        a, b = self.gate(self.norm_second(x)).chunk(2, dim=-1)
        return x + self.down(F.gelu(a) * b)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        nn.init.normal_(self.words.weight, std=0.02)
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        cos, sin = rotary(LENGTH, WIDTH // HEADS)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, words):
        x = self.norm(self.words(words))
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x


class MaskedLanguageModel(nn.Module):
    """The encoder, a prediction head and the decoder that shares the table of words."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, words, labels):
        output = self.encoder(words).flatten(0, 1)
        labels = labels.flatten()
        if VARIANT != "a":
            keep = labels != IGNORE
            output, labels = output[keep], labels[keep]
        logits = F.linear(self.head(output), self.encoder.words.weight, self.bias)
        return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE)


def groups_of(model):
    """Weights decay, biases and norms do not."""
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decay, "weight_decay": 1e-5}, {"params": plain, "weight_decay": 0.0}]


def rate_of(step):
    """Warm-up, a plateau, and a decay at the end."""
    return min(1.0, (step + 1) / 200, max(0.05, (STEPS - step) / max(1, STEPS // 5)))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        PackedText(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=4,
        collate_fn=MaskingCollator(),
        pin_memory=device == "cuda",
        persistent_workers=True,
    )
    model = MaskedLanguageModel().to(device)
    optimizer = torch.optim.AdamW(groups_of(model), lr=5e-4, betas=(0.9, 0.98), fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_of)
    held_words, held_labels = MaskingCollator()([PackedText(1)[i] for i in range(BATCH)])
    held_words, held_labels = held_words.to(device), held_labels.to(device)
    warm = min(10, STEPS // 2)
    stream = endless(loader)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        words, labels = (t.to(device, non_blocking=True) for t in next(stream))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(words, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.2e}")
        if (step + 1) % EVAL_EVERY == 0:
            with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                print(f"step {step + 1} held out {model(held_words, held_labels).item():.4f}")
        last = loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
