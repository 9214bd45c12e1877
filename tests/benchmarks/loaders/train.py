"""Trains a small model on one of ten kinds of dataset (KIND), with WORKERS, and prints the time of a step."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

KIND, WORKERS = os.environ["KIND"], int(os.environ["WORKERS"])
SECONDS = float(os.environ.get("SECONDS", 5))
BATCH, LENGTH = 16, 100_000
WIDE = {"large": 3 * 256 * 256, "stored": 3 * 128 * 128}


def busy(ms: float) -> None:
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        sum(range(200))


def sample(i: int):
    draw = np.random.default_rng(i)
    if KIND == "light":
        return torch.full((256,), float(i % 7))
    if KIND == "python":
        busy(1.0)
    elif KIND == "heavy":
        busy(4.0)
    elif KIND == "waiting":
        time.sleep(0.002)
    elif KIND == "both":
        busy(0.5)
        time.sleep(0.001)
    elif KIND == "choice":
        draw.choice(20_000, 200, replace=False)
    elif KIND == "many":
        return {f"column{k}": torch.full((64,), float(k)) for k in range(40)}
    elif KIND in WIDE:
        return torch.from_numpy(draw.random(WIDE[KIND], dtype=np.float32))
    return torch.from_numpy(draw.random(256, dtype=np.float32))


class Samples(Dataset):
    def __len__(self):
        return BATCH * 12 if KIND == "epochs" else LENGTH

    def __getitem__(self, i):
        if KIND == "epochs":
            busy(0.5)
        return sample(i)


class Stream(IterableDataset):
    def __iter__(self):
        told = torch.utils.data.get_worker_info()
        first, step = (0, 1) if told is None else (told.id, told.num_workers)
        for i in range(first, LENGTH, step):
            busy(1.0)
            yield sample(i)


def collate(samples):
    if KIND == "collate":
        busy(12.0)
    return torch.utils.data.default_collate(samples)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = Stream() if KIND == "stream" else Samples()
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=collate)
    steps, began, end = 0, 0.0, time.perf_counter() + 2 * SECONDS
    while time.perf_counter() < end:
        for batch in loader:
            rows = (
                torch.stack(list(batch.values()), 1)[:, :4].flatten(1) if isinstance(batch, dict) else batch
            )
            x = rows[:, :256]
            for _ in range(4):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            steps += 1
            if steps == 12:
                began, end = time.perf_counter(), time.perf_counter() + SECONDS
            if steps > 12 and time.perf_counter() > end:
                break
    print(f"{1000 * (time.perf_counter() - began) / (steps - 12):.2f} ms per step")


if __name__ == "__main__":
    main()
