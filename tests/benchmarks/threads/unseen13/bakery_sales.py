"""Forecasts the hourly sales of bakeries a day ahead from their past week and the calendar."""

import os
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 130))
SHOPS, HOURS, PAST, AHEAD, BATCH = 30, 24 * 730, 168, 24, 16


def make_shops():
    """Each shop opened on a day of its own; sales follow the hour and the weekday."""
    rng = np.random.default_rng(34)
    shops = []
    for _ in range(SHOPS):
        start = pd.Period("2021-01-01 00:00", freq="h") + 24 * int(rng.integers(0, 300))
        length = HOURS - 24 * int(rng.integers(0, 8))
        hour = np.arange(length) + start.ordinal
        level = rng.uniform(20, 80) * (1 + 0.6 * np.sin(2 * np.pi * (hour % 24 - 7) / 24))
        level = level * (1 + 0.3 * ((hour // 24) % 7 > 4))
        shops.append({"start": start, "target": rng.poisson(level).astype(np.float32)})
    return shops


def calendar(start, length):
    """What the clock and the calendar show at each hour of the series, as numbers about zero."""
    index = pd.period_range(start, periods=length, freq=start.freq)
    columns = [
        index.hour / 23.0 - 0.5,
        index.dayofweek / 6.0 - 0.5,
        (index.day - 1) / 30.0 - 0.5,
        (index.dayofyear - 1) / 365.0 - 0.5,
    ]
    return np.stack([np.asarray(column) for column in columns], 1).astype(np.float32)


class AddCalendar:
    def __init__(self):
        self.seen = {}

    def __call__(self, entry):
        key = entry["start"].ordinal, len(entry["target"])
        if VARIANT == "a" or key not in self.seen:
            self.seen[key] = calendar(entry["start"], len(entry["target"]))
        return entry | {"calendar": self.seen[key]}


class Windows(IterableDataset):
    """An endless stream of windows, each from a shop drawn at random."""

    def __init__(self):
        self.shops, self.add = make_shops(), AddCalendar()

    def __iter__(self):
        rng = np.random.default_rng(35)
        while True:
            entry = self.add(self.shops[rng.integers(SHOPS)])
            now = rng.integers(PAST, len(entry["target"]) - AHEAD)
            known, marks = entry["target"], entry["calendar"]
            scale = known[now - PAST : now].mean() + 1
            yield known[now - PAST : now + AHEAD] / scale, marks[now - PAST : now + AHEAD]


class SalesNet(nn.Module):
    """Reads the week with a recurrent net and tells mean and spread of each hour of the day ahead."""

    def __init__(self, width=64):
        super().__init__()
        self.read = nn.GRU(5, width, num_layers=2, batch_first=True)
        self.ahead = nn.GRU(4, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, past, marks):
        _, state = self.read(torch.cat([past[..., None], marks[:, :PAST]], 2))
        seen, _ = self.ahead(marks[:, PAST:], state)
        mean, spread = self.head(seen).unbind(-1)
        return mean, F.softplus(spread) + 1e-2


def main():
    torch.manual_seed(34)
    stream = iter(DataLoader(Windows(), batch_size=BATCH))
    model = SalesNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        sales, marks = next(stream)
        mean, spread = model(sales[:, :PAST], marks)
        loss = (0.5 * ((sales[:, PAST:] - mean) / spread) ** 2 + spread.log()).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
