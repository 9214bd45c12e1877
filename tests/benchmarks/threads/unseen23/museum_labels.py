"""Restores worn labels of a museum, letter by letter, with a small transformer."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
LABELS, LETTERS, LENGTH, BATCH, WORN = 4_000, 40, 96, 24, 41


def make_labels():
    """Labels of words from a list of 400, which are worn in some places."""
    g = torch.Generator().manual_seed(41)
    words = torch.randint(1, LETTERS, (400, 6), generator=g)
    chosen = (torch.rand(LABELS, LENGTH // 6, generator=g).square() * 400).long()
    return words[chosen].flatten(1)


def bend(x):
    if VARIANT == "a":
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
    return F.gelu(x)


class Block(nn.Module):
    def __init__(self, width, heads=4, wider=16):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.sides, self.together = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, wider * width), nn.Linear(wider * width, width)

    def forward(self, x):
        number, length, width = x.shape
        sides = self.sides(self.norm1(x)).view(number, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*sides).transpose(1, 2).reshape(number, length, width)
        x = x + self.together(y)
        return x + self.down(bend(self.up(self.norm2(x))))


class Restorer(nn.Module):
    def __init__(self, width=48, depth=3):
        super().__init__()
        self.letters = nn.Embedding(LETTERS + 2, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm, self.read = nn.LayerNorm(width), nn.Linear(width, LETTERS)

    def forward(self, labels):
        return self.read(self.norm(self.blocks(self.letters(labels) + self.places)))


def main():
    torch.manual_seed(41)
    labels = make_labels()
    model = Restorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(5, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        whole = labels[torch.randint(0, LABELS, (BATCH,))]
        gone = torch.rand(whole.shape) < 0.2
        scores = model(whole.masked_fill(gone, WORN))
        loss = F.cross_entropy(scores[gone], whole[gone])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
