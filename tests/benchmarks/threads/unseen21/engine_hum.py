"""Tells worn bearings from the hum of engines, with layers that filter along the whole recording."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
ENGINES, SAMPLES, BATCH, FAULTS = 400, 2048, 16, 5


def make_hum():
    """Harmonics of the speed, and of each fault its own ringing."""
    g = torch.Generator().manual_seed(7)
    moment = torch.arange(SAMPLES) / 1000
    speed = 20 + 30 * torch.rand(ENGINES, 1, generator=g)
    fault = torch.randint(0, FAULTS, (ENGINES,), generator=g)
    hum = sum(torch.sin(2 * torch.pi * k * speed * moment) / k for k in (1, 2, 3))
    ring = torch.sin(2 * torch.pi * (90 + 45 * fault[:, None]) * moment)
    beat = (torch.sin(2 * torch.pi * speed * 0.4 * moment) > 0.8).float()
    return (hum + ring * beat + 0.5 * torch.randn(ENGINES, SAMPLES, generator=g))[:, :, None], fault


class LongFilter(nn.Module):
    """Each channel is filtered by a response as long as the recording."""

    def __init__(self, width):
        super().__init__()
        self.response = nn.Parameter(0.02 * torch.randn(SAMPLES, width))

    def forward(self, x):
        if VARIANT == "a":
            spectrum = torch.fft.fft(x, dim=1) * torch.fft.fft(self.response, dim=0)
            return torch.fft.ifft(spectrum, dim=1).real
        spectrum = torch.fft.rfft(x, dim=1) * torch.fft.rfft(self.response, dim=0)
        return torch.fft.irfft(spectrum, n=SAMPLES, dim=1)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.filter = LongFilter(width)
        self.mix = nn.Sequential(nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.mix(self.filter(self.norm(x)))


class HumNet(nn.Module):
    def __init__(self, width=24, layers=2):
        super().__init__()
        self.into = nn.Linear(1, width)
        self.layers = nn.Sequential(*[Layer(width) for _ in range(layers)])
        self.head = nn.Linear(2 * width, FAULTS)

    def forward(self, hum):
        x = self.layers(self.into(hum))
        return self.head(torch.cat([x.mean(1), x.abs().mean(1)], -1))


def main():
    torch.manual_seed(7)
    hum, fault = make_hum()
    model = HumNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, ENGINES, (BATCH,))
        loss = F.cross_entropy(model(hum[rows]), fault[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
