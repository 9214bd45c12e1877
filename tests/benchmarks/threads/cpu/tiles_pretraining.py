"""Pretraining on satellite tiles, listed in an index of half a million entries."""

import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
EPOCHS = int(os.environ.get("EPOCHS", 2))
COUNT = 500_000


class Tiles(Dataset):
    def __init__(self):
        self.samples = [(f"tiles/{i // 1000:04d}/{i}.npy", i % 1000, {"k": i}) for i in range(COUNT)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        path, label, _ = self.samples[i]
        return make_tile(path), label


class IndexedTiles(Dataset):
    def __init__(self, folder):
        self.index = os.path.join(folder, "index.npy")
        np.save(self.index, np.array([f"tiles/{i // 1000:04d}/{i}.npy" for i in range(COUNT)], dtype="S24"))
        self.paths = None

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        if self.paths is None:
            self.paths = np.load(self.index, mmap_mode="r")
        return make_tile(self.paths[i].decode()), i % 1000


def make_tile(path):
    number = int(path.rsplit("/", 1)[1].split(".")[0])
    tile = np.arange(3 * 32 * 32, dtype="float32").reshape(3, 32, 32)
    return torch.from_numpy(np.sin(tile * (number % 97)))


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 1000),
    )  # fmt: skip


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Tiles() if VARIANT == "a" else IndexedTiles(folder)
        loader = DataLoader(
            dataset, batch_size=64, sampler=RandomSampler(dataset, num_samples=64 * 60),
            num_workers=2, multiprocessing_context="spawn",
        )  # fmt: skip
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        start, steps = time.perf_counter(), 0
        for epoch in range(EPOCHS):
            for tiles, labels in loader:
                loss = nn.functional.cross_entropy(model(tiles), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
            print(f"epoch {epoch} loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / steps:.2f} ms per step")


if __name__ == "__main__":
    main()
