"""Regression on a table of 32 columns."""

import os
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
BATCH = 1024


def make_table(rows=200_000, columns=32):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=g)
    y = (x[:, :4].sum(1) + 0.1 * torch.randn(rows, generator=g)).unsqueeze(1)
    return TensorDataset(x, y)


def make_loader(dataset):
    if VARIANT == "a":
        return DataLoader(dataset, batch_size=BATCH, shuffle=True)
    sampler = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    return DataLoader(dataset, sampler=sampler, batch_size=None)


def forever(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    loader = make_loader(make_table())
    model = nn.Sequential(nn.Linear(32, 320), nn.ReLU(), nn.Linear(320, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    stream = forever(loader)
    running = 0.0
    for step in range(STEPS):
        if step == 20:
            start = time.perf_counter()
        x, y = next(stream)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        running = 0.98 * running + 0.02 * loss.item()
    seconds = time.perf_counter() - start
    print(f"running loss {running:.4f}")
    print(f"{1000 * seconds / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
