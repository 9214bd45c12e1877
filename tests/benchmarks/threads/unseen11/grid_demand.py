"""Forecasts the power that the districts of a town draw, and keeps a table of the run."""

import csv
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
DISTRICTS, HOURS, AHEAD, BATCH = 6, 24 * 300, 12, 32
FIELDS = ["step", "district", "loss", "bias", "spread", "peak"]


class RunTable:
    """The figures of a run as CSV, so that a spreadsheet can follow it."""

    def __init__(self, path):
        self.path, self.rows = path, []

    def add(self, **figures):
        self.rows.append(figures)

    def save(self):
        if VARIANT == "a":
            with self.path.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(self.rows)
            return
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerows(self.rows)
        self.rows = []


def make_demand():
    """Daily and weekly rhythm of each district, with weather common to all."""
    g = torch.Generator().manual_seed(14)
    hour = torch.arange(HOURS)[:, None]
    weight = torch.rand(3, DISTRICTS, generator=g)
    daily = torch.sin(hour * 2 * torch.pi / 24 + 2 * weight[0]) * (0.5 + weight[1])
    weekly = ((hour // 24) % 7 < 5) * 0.6 * weight[2]
    weather = torch.randn(HOURS, 1, generator=g).cumsum(0)
    weather = (weather - weather.mean()) / weather.std()
    return daily + weekly + 0.3 * weather + 0.1 * torch.randn(HOURS, DISTRICTS, generator=g)


class DemandModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.memory = nn.GRU(DISTRICTS, width, batch_first=True)
        self.head = nn.Linear(width, AHEAD * DISTRICTS)

    def forward(self, past):
        _, state = self.memory(past)
        return self.head(state[0]).view(-1, AHEAD, DISTRICTS)


def main():
    torch.manual_seed(14)
    torch.set_num_threads(1)
    demand = make_demand()
    model = DemandModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    table = RunTable(Path(tempfile.mkdtemp()) / "run.csv")
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        first = torch.randint(0, HOURS - 60, (BATCH, 1))
        hours = demand[first + torch.arange(48 + AHEAD)]
        error = model(hours[:, :48]) - hours[:, 48:]
        loss = F.huber_loss(error, torch.zeros_like(error))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        error = error.detach()
        figures = [
            error.square().mean((0, 1)),
            error.mean((0, 1)),
            error.std((0, 1)),
            error.abs().amax((0, 1)),
        ]
        for district, row in enumerate(torch.stack(figures, 1).tolist()):
            table.add(step=step, district=district, **dict(zip(FIELDS[2:], row, strict=True)))
        table.save()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, {sum(1 for _ in table.path.open()) - 1} rows")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
