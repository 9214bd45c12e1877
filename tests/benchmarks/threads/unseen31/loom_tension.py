"""Predicts the tension of warp and weft threads from the vibration of a loom."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1500"))

BATCH, WINDOW = 64, 96


class Average:
    """The mean of all values of an epoch so far."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.values, self.total, self.count = [], 0.0, 0

    def update(self, values):
        if VARIANT == "a":
            self.values.extend(values)
        else:
            self.total += sum(values)
            self.count += len(values)

    def compute(self):
        if VARIANT == "a":
            return float(np.mean(self.values))
        return self.total / self.count


class Meters:
    def __init__(self, names):
        self.averages = {name: Average() for name in names}
        self.line = ""

    def update(self, **values):
        for name, value in values.items():
            self.averages[name].update(value)
        parts = [f"{name} {average.compute():.4f}" for name, average in self.averages.items()]
        self.line = "  ".join(parts)


class LoomNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(3, width, 5, padding=2), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2, stride=2), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, padding=2, stride=2), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(4 * width, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        h = self.conv(x)
        return self.head(torch.cat([h.mean(2), h.amax(2)], dim=1))


def vibrations(count, generator):
    tension = torch.rand(count, 2, generator=generator)
    t = torch.arange(WINDOW) / WINDOW
    phase = 6.28 * torch.rand(count, 1, generator=generator)
    warp = torch.sin(20 * (1 + tension[:, :1]) * t + phase)
    weft = torch.sin(35 * (1 + tension[:, 1:]) * t + 2 * phase)
    x = torch.stack([warp + weft, warp * weft, warp - 0.5 * weft], dim=1)
    return x + 0.1 * torch.randn(x.shape, generator=generator), tension


torch.manual_seed(41)
generator = torch.Generator().manual_seed(42)
signals, tensions = vibrations(6000, generator)
model = LoomNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
meters = Meters(["loss", "warp", "weft", "slack"])
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        start = time.perf_counter()
    rows = torch.randint(0, len(signals), (BATCH,), generator=generator)
    x, y = signals[rows], tensions[rows]
    predicted = model(x)
    each = (predicted - y).square().mean(1)
    loss = each.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    off = (predicted.detach() - y).abs()
    meters.update(
        loss=each.tolist(),
        warp=off[:, 0].tolist(),
        weft=off[:, 1].tolist(),
        slack=(off.amax(1) > 0.1).tolist(),
    )
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
