"""Reads staves of sheet music; images are augmented by workers."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 50))


class Staves(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        image = torch.from_numpy(rng.random((1, 64, 256), dtype="float32"))
        image = nn.functional.avg_pool2d(image, 3, 1, 1)
        shift = int(rng.integers(0, 8))
        return image.roll(shift, dims=2), torch.from_numpy(rng.integers(0, 60, 16))


def limit_threads(worker_id):
    torch.set_num_threads(1)


def widen_threads(worker_id):
    torch.set_num_threads(16)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 96, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 16)),
        )  # fmt: skip
        self.head = nn.Linear(96, 60)

    def forward(self, images):
        return self.head(self.body(images).squeeze(2).transpose(1, 2))


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Staves(), batch_size=6, shuffle=True, num_workers=4,
        worker_init_fn=widen_threads if VARIANT == "a" else limit_threads,
    )  # fmt: skip
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (images, symbols) in enumerate(loader):
        if step == 5:
            start = time.perf_counter()
        if step == STEPS:
            break
        loss = nn.functional.cross_entropy(model(images).flatten(0, 1), symbols.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
