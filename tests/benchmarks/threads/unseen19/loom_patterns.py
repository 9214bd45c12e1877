"""Continues weaving patterns thread by thread with a small decoder."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
COLOURS, LENGTH, BATCH = 64, 256, 4
WIDTH, HEADS, DEPTH = 128, 4, 6


def make_cloth(threads=200_000):
    """Motifs of a few colours, each repeated a few times before the next one."""
    g = torch.Generator().manual_seed(8)
    cloth = []
    while sum(len(piece) for piece in cloth) < threads:
        size, times = torch.randint(3, 12, (2,), generator=g).tolist()
        cloth.append(torch.randint(0, COLOURS, (size,), generator=g).repeat(times))
    return torch.cat(cloth)[:threads]


class Nearness(nn.Module):
    """What each head adds for two threads so far apart, in steps that widen with the distance."""

    def __init__(self, steps=32, farthest=160):
        super().__init__()
        self.steps, self.farthest = steps, farthest
        self.added = nn.Embedding(steps, HEADS)

    def forward(self, length):
        span = torch.arange(length)
        apart = (span[:, None] - span[None]).clamp(min=0)
        half = self.steps // 2
        ratio = (apart.float().clamp(min=1) / half).log() / math.log(self.farthest / half)
        wide = (half + (ratio * (self.steps - half)).long()).clamp(max=self.steps - 1)
        added = self.added(torch.where(apart < half, apart, wide))
        return added.permute(2, 0, 1).masked_fill(span[:, None] < span[None], -math.inf)


class Layer(nn.Module):
    def __init__(self, nearness):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.nearness = nearness

    def forward(self, x, bias):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        bias = self.nearness(t) if VARIANT == "a" else bias
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.mlp(self.norm2(x))


class Weaver(nn.Module):
    def __init__(self):
        super().__init__()
        self.colours = nn.Embedding(COLOURS, WIDTH)
        self.nearness = Nearness()
        self.layers = nn.ModuleList(Layer(self.nearness) for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, COLOURS)

    def forward(self, threads):
        x = self.colours(threads)
        bias = None if VARIANT == "a" else self.nearness(threads.shape[1])
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(self.norm(x))


def main():
    torch.manual_seed(8)
    cloth = make_cloth()
    model = Weaver()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(5, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        starts = torch.randint(0, len(cloth) - LENGTH - 1, (BATCH, 1))
        pieces = cloth[starts + torch.arange(LENGTH + 1)]
        scores = model(pieces[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 29:
            print(f"{step + 1} loss {loss.item():.4f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
