"""Next-entry model for sequences of ledger entries, compiled, with a board of activities."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from activity_board import ActivityBoard

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 6 if SMALL else 3000))
WARMUP = 3 if SMALL else 30
device = "cuda" if torch.cuda.is_available() else "cpu"

DIM, HEADS, LAYERS = (32, 2, 2) if SMALL else (512, 8, 12)
ENTRIES, LENGTH, BATCH = (64, 16, 4) if SMALL else (4096, 256, 80)
FIELDS = 4


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(h.transpose(1, 2).reshape(b, t, DIM))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mixer = Mixer()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.gain = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        x = x + self.mixer(self.norm1(x))
        return x + self.gain * self.down(F.gelu(self.up(self.norm2(x))))


class LedgerModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.entry = nn.Embedding(ENTRIES, DIM)
        self.amount = nn.Linear(FIELDS, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, ENTRIES, bias=False)

    def forward(self, entries, fields):
        x = self.entry(entries) + self.amount(fields) + self.place
        return self.head(self.norm(self.blocks(x)))


def batches(generator):
    entries = torch.randint(0, ENTRIES, (32, BATCH, LENGTH + 1), generator=generator).to(device)
    fields = torch.randn(32, BATCH, LENGTH, FIELDS, generator=generator).to(device)
    while True:
        for row, extra in zip(entries, fields):
            yield row[:, :-1], extra, row[:, 1:]


def main():
    torch.manual_seed(23)
    torch.set_float32_matmul_precision("high")
    model = LedgerModel().to(device)
    board = ActivityBoard(every=20)
    if VARIANT == "a":
        board.follow(model)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    source = batches(torch.Generator().manual_seed(23))
    started = time.perf_counter()
    for step in range(STEPS):
        if step == WARMUP:
            if device == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        entries, fields, target = next(source)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = compiled(entries, fields)
        loss = F.cross_entropy(logits.reshape(-1, ENTRIES), target.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    print("board", board.summary())
    print(f"loss {loss.item():.4f}")
    print(f"{elapsed / max(1, STEPS - WARMUP) * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
