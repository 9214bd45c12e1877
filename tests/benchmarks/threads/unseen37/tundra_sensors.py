"""Forecast the temperature of the ground from the series of weather stations in the tundra."""

import gc
import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "450"))
WARM = min(10, STEPS // 2)
STATIONS = 60
HOURS = 20000
SAMPLES = 40000
BATCH = 64
TIDY_EVERY = 4
WINDOW = 96
CHANNELS = 8
WIDTH = 80


def station_index(rng):
    index = []
    for number in range(SAMPLES):
        station = rng.randrange(STATIONS)
        begin = rng.randrange(HOURS - WINDOW - 1)
        parts = [("series", begin), ("ground", begin + WINDOW)]
        index.append(
            {
                "key": f"s{station:03d}.{number:07d}",
                "station": station,
                "span": [begin, begin + WINDOW],
                "parts": parts,
            }
        )
    return index


class StationWindows(IterableDataset):
    """Batches of windows, in random order, without end."""

    def __init__(self, series, index):
        self.series, self.index = series, index

    def __iter__(self):
        rng = random.Random(1)
        while True:
            entries = [self.index[rng.randrange(len(self.index))] for _ in range(BATCH)]
            x = np.stack([self.series[e["station"], e["span"][0] : e["span"][1]] for e in entries])
            y = np.stack([self.series[e["station"], e["span"][1], :1] for e in entries])
            yield torch.from_numpy(x), torch.from_numpy(y)


class MemoryKeeper(IterableDataset):
    """Gives back large tensors soon, so that the memory of long runs stays flat."""

    def __init__(self, dataset, every_n_iter=1, freeze=False):
        self.dataset, self.every_n_iter, self.freeze = dataset, every_n_iter, freeze

    def __iter__(self):
        if self.freeze:
            gc.collect()
            gc.freeze()
        try:
            count = 0
            for sample in self.dataset:
                yield sample
                count += 1
                if count >= self.every_n_iter:
                    gc.collect(2)
                    count = 0
        finally:
            if self.freeze:
                gc.unfreeze()


class GroundNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        size = CHANNELS
        for dilation in (1, 2, 4, 8):
            layers += [nn.Conv1d(size, WIDTH, 3, dilation=dilation, padding=dilation), nn.GELU()]
            size = WIDTH
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.body(x.transpose(1, 2)).mean(2))


def main():
    torch.manual_seed(0)
    noise = np.random.default_rng(0)
    hours = np.arange(HOURS)[None, :, None] / 24
    series = np.sin(hours * (1 + np.arange(CHANNELS)) + noise.normal(size=(STATIONS, 1, CHANNELS)))
    series = (series + 0.1 * noise.normal(size=series.shape)).astype(np.float32)
    index = station_index(random.Random(0))
    windows = MemoryKeeper(StationWindows(series, index), TIDY_EVERY, freeze=VARIANT != "a")
    loader = iter(DataLoader(windows, batch_size=None))
    model = GroundNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        x, y = next(loader)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = (time.perf_counter() - start) / (STEPS - WARM)
    print(f"loss {loss.item():.5f}")
    print(f"{spent * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
