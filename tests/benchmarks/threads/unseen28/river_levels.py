"""Trains a small network that forecasts the next level of a river from smoothed gauge readings."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "3000"))
BATCH = int(os.environ.get("BATCH", "32"))
GAUGES = int(os.environ.get("GAUGES", "6"))
HOURS = int(os.environ.get("HOURS", "240"))
RECORD = int(os.environ.get("RECORD", "20000"))
HIDDEN = int(os.environ.get("HIDDEN", "128"))
DECAYS = (0.5, 0.8, 0.95, 0.99)
DEVICE = torch.device("cpu")


def make_record(hours, gauges):
    """Levels of all gauges over time: long waves, some rain, a little noise."""
    generator = torch.Generator(device=DEVICE).manual_seed(7)
    time_axis = torch.arange(hours, device=DEVICE, dtype=torch.float32)
    phase = torch.rand(gauges, generator=generator, device=DEVICE) * 6.28
    waves = torch.sin(time_axis[:, None] / 180.0 + phase)
    rain = (torch.rand(hours, 1, generator=generator, device=DEVICE) > 0.97).float()
    noise = 0.05 * torch.randn(hours, gauges, generator=generator, device=DEVICE)
    return waves + 0.4 * rain + noise


def draw_windows(record, generator):
    """Windows of HOURS readings and the level of the first gauge in the hour that follows."""
    starts = torch.randint(0, record.shape[0] - HOURS - 1, (BATCH,), generator=generator, device=DEVICE)
    index = starts[:, None] + torch.arange(HOURS, device=DEVICE)
    return record[index].transpose(0, 1).contiguous(), record[starts + HOURS, 0]


class Smoother:
    """Exponential averages of the readings, one set for each decay."""

    def __init__(self, decays):
        self.decays = decays

    @torch.no_grad()
    def __call__(self, readings):
        states = [readings[0].clone() for _ in self.decays]
        highest = readings[0].clone()
        for hour in range(1, readings.shape[0]):
            now = readings[hour]
            for decay, state in zip(self.decays, states):
                state.lerp_(now, 1.0 - decay)
            torch.maximum(highest, now, out=highest)
        return torch.cat([*states, highest, readings[-1]], dim=1)


class LevelNet(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.first = nn.Linear(features, hidden, device=DEVICE)
        self.second = nn.Linear(hidden, hidden, device=DEVICE)
        self.last = nn.Linear(hidden, 1, device=DEVICE)

    def forward(self, features):
        hidden = F.relu(self.first(features))
        hidden = F.relu(self.second(hidden))
        return self.last(hidden).squeeze(-1)


def set_up():
    torch.manual_seed(0)
    if VARIANT == "a":
        torch.set_default_device(DEVICE)


def main():
    set_up()
    record = make_record(RECORD, GAUGES)
    generator = torch.Generator(device=DEVICE).manual_seed(1)
    smoother = Smoother(DECAYS)
    model = LevelNet(GAUGES * (len(DECAYS) + 2), HIDDEN)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        readings, target = draw_windows(record, generator)
        features = smoother(readings)
        loss = F.mse_loss(model(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
