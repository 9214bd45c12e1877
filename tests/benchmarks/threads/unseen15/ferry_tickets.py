"""Predicts how many cars a ferry crossing will carry from a table of crossings, read in large groups."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 560))
COLUMNS, GROUP, GROUPS, AHEAD, BATCH = 48, 50_000, 6, 200_000, 1024


def write_groups(folder):
    """One file per group of rows, a column after the other; the last column is the number of cars."""
    rng = np.random.default_rng(42)
    way = rng.standard_normal(COLUMNS - 1)
    for n in range(GROUPS):
        table = rng.standard_normal((COLUMNS, GROUP))
        table[-1] = np.tanh(way @ table[:-1] / 4) + 0.3 * table[-1]
        np.save(folder / f"group{n}.npy", table)


def read_groups(folder):
    """Endless groups of rows as lists of columns."""
    while True:
        for path in sorted(folder.glob("*.npy")):
            yield [torch.from_numpy(column) for column in np.load(path)]


class Batches:
    """Cuts groups of rows into batches; some groups are read ahead."""

    def __init__(self, groups, size):
        self.groups, self.size = groups, size
        self.waiting, self.rows = [], 0

    def __iter__(self):
        return self

    def __next__(self):
        while self.rows < AHEAD:
            group = next(self.groups)
            self.waiting.append(group)
            self.rows += len(group[0])
        if VARIANT == "a" or len(self.waiting[0][0]) < self.size:
            self.waiting = [[torch.cat(parts) for parts in zip(*self.waiting, strict=True)]]
        columns = self.waiting[0]
        batch = [column[: self.size] for column in columns]
        self.waiting[0] = [column[self.size :] for column in columns]
        self.rows -= self.size
        return torch.stack(batch[:-1], 1).float(), batch[-1].float()


class CarCounter(nn.Module):
    def __init__(self, width=352, depth=3):
        super().__init__()
        self.first = nn.Linear(COLUMNS - 1, width)
        self.body = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.body:
            x = x + block(x)
        return self.head(x)[:, 0]


def main():
    torch.manual_seed(42)
    folder = Path(tempfile.mkdtemp())
    write_groups(folder)
    batches = Batches(read_groups(folder), BATCH)
    model = CarCounter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        crossings, cars = next(batches)
        loss = F.smooth_l1_loss(model(crossings), cars)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    shutil.rmtree(folder)
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
