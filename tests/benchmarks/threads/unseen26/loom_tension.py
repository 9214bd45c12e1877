"""Trains a classifier of cloth faults from a table of tension readings of a weaving mill."""

import os
import time

import numpy as np
import pandas as pd
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1800"))
PIECES = int(os.environ.get("PIECES", "20000"))
THREADS = int(os.environ.get("THREADS", "640"))
BATCH = int(os.environ.get("BATCH", "1024"))
HIDDEN = int(os.environ.get("HIDDEN", "128"))
FAULTS = 6


def mill_records(pieces: int, threads: int, seed: int) -> pd.DataFrame:
    """One row per piece of cloth: a tension for each thread, and the fault that was found."""
    random = np.random.default_rng(seed)
    fault = random.integers(0, FAULTS, pieces)
    leaning = random.normal(size=(FAULTS, threads)).astype(np.float32)
    columns = {}
    for thread in range(threads):
        noise = random.normal(scale=3.0, size=pieces).astype(np.float32)
        columns[f"thread_{thread:03d}"] = noise + leaning[fault, thread]
    records = pd.DataFrame(columns)
    records["fault"] = fault
    return records


class ClothTable:
    """Readings and faults by the number of the piece."""

    def __init__(self, records: pd.DataFrame) -> None:
        readings = records.drop(columns="fault")
        self.mean = torch.from_numpy(readings.mean().to_numpy(np.float32, copy=True))
        self.spread = torch.from_numpy(readings.std().to_numpy(np.float32, copy=True))
        self.readings = self.store(readings)
        self.faults = records["fault"].to_numpy(np.int64)

    @staticmethod
    def store(readings: pd.DataFrame) -> np.ndarray:
        values = readings.to_numpy(np.float32)
        if VARIANT == "b":
            values = np.ascontiguousarray(values)
        return values

    def __len__(self) -> int:
        return len(self.faults)

    def pieces(self, numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        tension = torch.from_numpy(self.readings[numbers])
        return (tension - self.mean) / self.spread, torch.from_numpy(self.faults[numbers])


class FaultNet(nn.Module):
    def __init__(self, threads: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(threads, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, FAULTS),
        )

    def forward(self, tension: torch.Tensor) -> torch.Tensor:
        return self.layers(tension)


def draws(count: int, batch: int, seed: int):
    """Numbers of pieces, batch by batch, without end."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(count)
        for start in range(0, count - batch + 1, batch):
            yield order[start : start + batch]


def main() -> None:
    torch.manual_seed(5)
    table = ClothTable(mill_records(PIECES, THREADS, seed=5))
    net = FaultNet(THREADS, HIDDEN)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    numbers = draws(len(table), BATCH, seed=6)

    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            begin = time.perf_counter()
        tension, fault = table.pieces(next(numbers))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(tension), fault)
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
