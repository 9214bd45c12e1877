"""Predicts the level of a river at the next gauge from a long record at the gauges above."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
GAUGES, DAYS, SPAN, BATCH = 8, 9_000, 384, 6


def make_levels():
    """Rain in bursts that runs off and arrives later at each gauge down the river."""
    g = torch.Generator().manual_seed(37)
    rain = torch.rand(DAYS + 200, generator=g) ** 8 * 6
    decay = 0.92 ** torch.arange(120.0)
    runoff = F.conv1d(rain[None, None], decay.flip(0)[None, None])[0, 0]
    late = torch.arange(GAUGES + 1) * 4
    level = torch.stack([runoff[60 - k : 60 - k + DAYS - 60] for k in late.tolist()], 1)
    level = (level - level.mean()) / level.std()
    return level + 0.05 * torch.randn(level.shape, generator=g)


class LongMixing(nn.Module):
    """Attention without a softmax, as kernels: all days look at all days."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        norm = torch.einsum("bhnd,bhd->bhn", q, k.sum(2))
        if VARIANT == "a":
            y = torch.einsum("bhnd,bhmd,bhme->bhne", q, k, v)
        else:
            y = torch.einsum("bhmd,bhme,bhnd->bhne", k, v, q)
        y = y / norm[..., None]
        return self.out(y.transpose(1, 2).reshape(b, n, width))


class GaugeNet(nn.Module):
    def __init__(self, width=96, heads=6, depth=3):
        super().__init__()
        self.into = nn.Linear(GAUGES, width)
        self.place = nn.Parameter(0.02 * torch.randn(SPAN, width))
        self.mix = nn.ModuleList([LongMixing(width, heads) for _ in range(depth)])
        self.bend = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(depth)
            ]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, levels):
        x = self.into(levels) + self.place
        for i, (mix, bend) in enumerate(zip(self.mix, self.bend, strict=True)):
            x = x + mix(self.norms[2 * i](x))
            x = x + bend(self.norms[2 * i + 1](x))
        return self.head(x)[..., 0]


def main():
    torch.manual_seed(37)
    levels = make_levels()
    model = GaugeNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        first = torch.randint(0, len(levels) - SPAN, (BATCH, 1))
        days = levels[first + torch.arange(SPAN)]
        loss = F.mse_loss(model(days[..., :GAUGES]), days[..., GAUGES])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
