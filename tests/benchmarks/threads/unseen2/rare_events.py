"""Rare events in a long record: rows are drawn by weight, a short epoch at a time."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 240))
ROWS, CHANNELS, LENGTH, BATCH, PER_EPOCH = 3_000_000, 4, 64, 64, 6


class Record(Dataset):
    def __init__(self):
        self.signal = torch.randn(CHANNELS, 100_000)

    def __len__(self):
        return ROWS

    def __getitems__(self, rows):
        starts = torch.as_tensor(rows) % (self.signal.shape[1] - LENGTH)
        windows = self.signal[:, starts[:, None] + torch.arange(LENGTH)].transpose(0, 1)
        return windows, (starts % 5 == 0).long()


class Spotter(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(CHANNELS, width, 7, padding=3), nn.ReLU(), nn.Conv1d(width, width, 7, padding=3), nn.ReLU(),
            nn.Conv1d(width, width, 7, padding=3), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x).amax(-1))


def main():
    torch.manual_seed(0)
    weights = np.where(np.arange(ROWS) % 1000 == 0, 50.0, 1.0)
    sampler = WeightedRandomSampler(weights, PER_EPOCH * BATCH, replacement=VARIANT == "b")
    loader = DataLoader(Record(), batch_size=BATCH, sampler=sampler, collate_fn=lambda batch: batch)
    model = Spotter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while step < STEPS:
        for x, y in loader:
            if step == PER_EPOCH:
                start = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (step - PER_EPOCH):.2f} ms per step")


if __name__ == "__main__":
    main()
