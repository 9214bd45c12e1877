"""Sorts showers of particles by what made them, from the light that reaches a wall of detectors."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 170))
SHOWERS, SIZE, KINDS, BATCH = 6_000, 40, 4, 32


def write(folder):
    """All hits in one file, shower after shower, and where each begins."""
    rng = np.random.default_rng(71)
    kind = rng.integers(0, KINDS, SHOWERS)
    number = rng.integers(150, 500, SHOWERS)
    begin = np.concatenate([[0], number.cumsum()])
    which = np.repeat(np.arange(SHOWERS), number)
    centre = rng.uniform(12, SIZE - 12, (SHOWERS, 2))[which]
    angle, wide = rng.random(len(which)) * 6.2832, (3 + 1.5 * kind)[which]
    ring = rng.normal(wide, 1.0)
    hits = centre + np.stack([ring * np.cos(angle), ring * np.sin(angle)], 1)
    cell = np.clip(hits, 0, SIZE - 1).astype(np.int64)
    np.save(folder / "cells.npy", cell[:, 0] * SIZE + cell[:, 1])
    np.save(folder / "charges.npy", rng.exponential(1, (len(which), 2)).astype(np.float32))
    return kind, begin


class Showers(Dataset):
    def __init__(self, folder, kind, begin):
        self.kind, self.begin = kind, begin
        mode = "r" if VARIANT == "a" else None
        self.cells = np.load(folder / "cells.npy", mmap_mode=mode)
        self.charges = np.load(folder / "charges.npy", mmap_mode=mode)

    def __len__(self):
        return SHOWERS

    def __getitem__(self, index):
        hits = slice(self.begin[index], self.begin[index + 1])
        picture = np.zeros((SIZE * SIZE, 2), np.float32)
        picture[self.cells[hits]] = self.charges[hits]
        return picture.T.reshape(2, SIZE, SIZE), self.kind[index]


class Sorter(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.begin = nn.Conv2d(2, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.BatchNorm2d(width),
                    nn.ReLU(),
                    nn.Conv2d(width, width, 3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.ReLU(),
                    nn.Conv2d(width, width, 3, padding=1),
                )
                for _ in range(2)
            ]
        )
        self.end = nn.Linear(width, KINDS)

    def forward(self, pictures):
        x = self.begin(pictures)
        for block in self.blocks:
            x = F.avg_pool2d(x + block(x), 2)
        return self.end(x.mean((2, 3)))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(71)
    with tempfile.TemporaryDirectory() as folder:
        kind, begin = write(Path(folder))
        showers = Showers(Path(folder), torch.from_numpy(kind), begin)
        batches = endless(DataLoader(showers, batch_size=BATCH, shuffle=True, drop_last=True))
        model = Sorter()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        warm = min(5, STEPS // 2)
        for step in range(STEPS):
            if step == warm:
                start = time.perf_counter()
            pictures, kinds = next(batches)
            loss = F.cross_entropy(model(pictures), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
