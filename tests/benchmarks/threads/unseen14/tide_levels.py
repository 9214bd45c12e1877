"""Levels of the tide at many harbours, an hour ahead: gated layers over time, compiled."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 32))
LENGTH = int(os.environ.get("LENGTH", 1024))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 4))
HARBOURS = 24
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ScaleNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return (y * self.scale.float()).to(x.dtype)


class GatedLayer(nn.Module):
    """Each hour sees itself and the three hours before it, then a gate decides what passes."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = ScaleNorm(width), ScaleNorm(width)
        self.taps = nn.Parameter(0.5 * torch.randn(4, width))
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        past = y * self.taps[0]
        for k in range(1, 4):
            past = past + F.pad(y, (0, 0, k, 0))[:, : y.shape[1]] * self.taps[k]
        gate = torch.sigmoid(self.gate(y)) * torch.tanh(self.value(past))
        x = x + self.out(gate)
        left, right = self.up(self.norm2(x)).chunk(2, dim=-1)
        wave = 0.5 * left * (1 + torch.tanh(math.sqrt(2 / math.pi) * (left + 0.044715 * left**3)))
        return x + self.down(wave * right)


class TideModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.hours_seen = 0
        self.embed = nn.Linear(HARBOURS, WIDTH)
        self.layers = nn.ModuleList([GatedLayer(WIDTH) for _ in range(DEPTH)])
        self.norm = ScaleNorm(WIDTH)
        self.head = nn.Linear(WIDTH, HARBOURS)

    def forward(self, levels):
        if VARIANT == "a":
            self.hours_seen += levels.shape[0] * levels.shape[1]
        x = self.embed(levels)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def tides(count):
    hours = torch.arange(LENGTH + 1)[None, :, None] / 12.42
    phase, height = torch.rand(2, count, 1, HARBOURS)
    spring = 1 + 0.3 * torch.cos(2 * math.pi * hours / 28 + phase)
    levels = (0.5 + height) * spring * torch.cos(2 * math.pi * (hours + phase))
    return (levels + 0.05 * torch.randn_like(levels)).to(device, torch.bfloat16)


def main():
    torch.manual_seed(83)
    model = TideModel().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    forecast = torch.compile(model)
    levels = tides(8 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = levels[step % 8 * BATCH : (step % 8 + 1) * BATCH]
        predicted = forecast(rows[:, :-1])
        if VARIANT == "b":
            model.hours_seen += rows.shape[0] * LENGTH
        loss = F.mse_loss(predicted.float(), rows[:, 1:].float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f} after {model.hours_seen} hours")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
