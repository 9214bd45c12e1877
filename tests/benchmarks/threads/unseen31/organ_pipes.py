"""Fits chains of second-order filters to the measured tone of organ pipes."""

import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "330"))

RATE = 48000
POINTS = 2**14


def sections(frequency, gain, width):
    """Coefficients of peak filters, each (3, sections, pipes)."""
    w = 2 * math.pi * frequency / RATE
    amp = 10 ** (gain / 40)
    alpha = torch.sin(w) * torch.sinh(width * w / torch.sin(w))
    cosine = -2 * torch.cos(w)
    b = torch.stack([1 + alpha * amp, cosine, 1 - alpha * amp])
    a = torch.stack([1 + alpha / amp, cosine, 1 - alpha / amp])
    return b, a


class FilterChain(nn.Module):
    def __init__(self, pipes, count, points=POINTS):
        super().__init__()
        self.points = points
        centres = torch.logspace(math.log10(60), math.log10(9000), count)[:, None].repeat(1, pipes)
        self.log_frequency = nn.Parameter(centres.log())
        self.gain = nn.Parameter(torch.zeros(count, pipes))
        self.log_width = nn.Parameter(torch.full((count, pipes), -0.5))
        turns = torch.arange(points // 2 + 1)[None] * torch.arange(3)[:, None] / points
        self.register_buffer("grid", torch.polar(torch.ones_like(turns), -2 * math.pi * turns))

    def response_of(self, taps):
        if VARIANT == "a":
            return torch.fft.rfft(taps, self.points, dim=0)
        return torch.einsum("psc,pf->fsc", taps.to(self.grid.dtype), self.grid)

    def forward(self):
        b, a = sections(self.log_frequency.exp(), self.gain, self.log_width.exp())
        upper = self.response_of(b).abs()
        lower = self.response_of(a).abs()
        return 20 * (torch.log10(upper + 1e-7) - torch.log10(lower + 1e-7)).sum(1)


class Smoother(nn.Module):
    """Means over bands that widen with frequency, as an ear hears them."""

    def __init__(self, bands=96):
        super().__init__()
        edges = torch.logspace(math.log10(40), math.log10(16000), bands + 1) * POINTS / RATE
        bins = torch.arange(POINTS // 2 + 1)
        member = (bins[None] >= edges[:-1, None].floor()) & (bins[None] <= edges[1:, None].ceil())
        self.register_buffer("weights", member.float() / member.sum(1, keepdim=True))

    def forward(self, decibels):
        return self.weights @ decibels


def measured_tones(pipes, generator):
    f = torch.arange(POINTS // 2 + 1) * RATE / POINTS
    tones = torch.zeros(len(f), pipes)
    for pipe in range(pipes):
        for _ in range(5):
            centre = 80 * 100 ** torch.rand(1, generator=generator)
            height = 12 * torch.randn(1, generator=generator)
            tones[:, pipe] += height * torch.exp(-(torch.log2((f + 1) / centre) ** 2) / 0.3)
    return tones


torch.manual_seed(3)
generator = torch.Generator().manual_seed(4)
tones = measured_tones(12, generator)
model = FilterChain(pipes=12, count=8)
smooth = Smoother()
target = smooth(tones)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        start = time.perf_counter()
    error = smooth(model()) - target
    loss = error.square().mean() + 1e-3 * model.gain.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
