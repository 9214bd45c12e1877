"""How long a car waits at a toll gate: passages are read from a long log, in its order, and made into batches."""

import os
import time
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 360))
BATCH = int(os.environ.get("BATCH", 512))
WIDTH = int(os.environ.get("WIDTH", 4096))
DEPTH = int(os.environ.get("DEPTH", 16))
AHEAD = int(os.environ.get("AHEAD", 700000))
GROUP, COLUMNS = 8192, 48
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class TollLog:
    """Groups of passages, as they stand in the file."""

    def __init__(self, groups=8):
        rng = np.random.default_rng(5)
        self.columns = rng.standard_normal((groups, GROUP, COLUMNS), dtype=np.float32)
        self.waits = np.tanh(self.columns[..., :6].sum(-1)).astype(np.float32)

    def read_group(self, number):
        k = number % len(self.columns)
        return list(zip(self.columns[k], self.waits[k], strict=True))


class OrderedBuffer:
    """First in, first out."""

    def __init__(self):
        self.rows = deque() if VARIANT == "b" else []

    def __len__(self):
        return len(self.rows)

    def add_many(self, rows):
        self.rows.extend(rows)

    def retrieve(self):
        return self.rows.popleft() if VARIANT == "b" else self.rows.pop(0)


class Passages(IterableDataset):
    def __init__(self, log):
        self.log, self.buffer, self.number = log, OrderedBuffer(), 0

    def __iter__(self):
        while True:
            while len(self.buffer) < AHEAD:
                self.buffer.add_many(self.log.read_group(self.number))
                self.number += 1
            yield self.buffer.retrieve()


def collate(rows):
    columns, waits = zip(*rows, strict=True)
    return torch.from_numpy(np.stack(columns)), torch.from_numpy(np.array(waits, dtype=np.float32))


def build_model():
    layers = [nn.Linear(COLUMNS, WIDTH), nn.GELU()]
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def main():
    torch.manual_seed(43)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    loader = DataLoader(Passages(TollLog()), batch_size=BATCH, collate_fn=collate)
    warm = min(15, STEPS // 2)
    for step, (columns, waits) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        columns, waits = columns.to(device), waits.to(device)
        loss = F.smooth_l1_loss(model(columns).squeeze(-1), waits)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step + 1 == STEPS:
            break
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
