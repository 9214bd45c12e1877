"""Grades slides of tissue that a scanner stored as large JPEG files."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 90))
COUNT, SIDE, BATCH = 48, 96, 4


def scan(folder):
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        coarse = Image.fromarray(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8))
        coarse.resize((1200, 900), Image.Resampling.BICUBIC).save(folder / f"{i:03}.jpg", quality=92)


class Slides(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.jpg"))
        self.cache = {}

    def __len__(self):
        return len(self.paths)

    def load(self, i):
        with Image.open(self.paths[i]) as image:
            image = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            return np.asarray(image)

    def __getitem__(self, i):
        if VARIANT == "b":
            if i not in self.cache:
                self.cache[i] = self.load(i)
            image = self.cache[i]
        else:
            image = self.load(i)
        x = torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255
        if torch.rand(()) < 0.5:
            x = x.flip(2)
        return (x - 0.5) / 0.25, i % 4


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


class Grader(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            block(3, 16), block(16, 16), nn.MaxPool2d(2), block(16, 32), block(32, 32),
            nn.MaxPool2d(2), block(32, 64), block(64, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        scan(Path(folder))
        loader = DataLoader(Slides(Path(folder)), batch_size=BATCH, shuffle=True)
        model = Grader()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        step, first = 0, len(loader)
        while step < STEPS:
            for x, y in loader:
                if step == first:
                    start = time.perf_counter()
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == STEPS:
                    break
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / (STEPS - first):.2f} ms per step")


if __name__ == "__main__":
    main()
