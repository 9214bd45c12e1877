"""Counts ears of wheat in photos of a field, as a map of where they stand."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 90))
PHOTOS, SIDE, BATCH = 120, 128, 8


def write_photos(folder):
    """Photos as files, the way they came from the field, and the places of the ears."""
    rng = np.random.default_rng(72)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    ears = []
    for number in range(PHOTOS):
        photo = np.full((SIDE, SIDE, 3), (90, 120, 60), np.float32) + rng.normal(0, 4, (SIDE, SIDE, 1))
        places = rng.integers(4, SIDE - 4, (int(rng.integers(5, 30)), 2))
        for a, b in places:
            photo += np.exp(-((y - a) ** 2 / 30 + (x - b) ** 2 / 8))[..., None] * (90, 60, 10)
        Image.fromarray(photo.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04d}.jpg", quality=80)
        ears.append(places)
    return ears


class Field(Dataset):
    def __init__(self, folder):
        self.ears = write_photos(folder)
        self.files = sorted(folder.glob("*.jpg"))
        self.kept = [None] * PHOTOS
        if VARIANT == "b":
            self.kept = [self.load(file) for file in self.files]

    @staticmethod
    def load(file):
        with Image.open(file) as photo:
            return np.asarray(photo.convert("RGB"))

    def __len__(self):
        return PHOTOS

    def __getitem__(self, index):
        photo = self.load(self.files[index]) if self.kept[index] is None else self.kept[index]
        where = np.zeros((SIDE // 4, SIDE // 4), np.float32)
        np.add.at(where, tuple(self.ears[index].T // 4), 1)
        if torch.rand(()) < 0.5:
            photo, where = photo[:, ::-1], where[:, ::-1]
        photo = torch.from_numpy(photo.copy()).permute(2, 0, 1).float() / 255
        return photo, torch.from_numpy(where.copy())


class EarNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.halved = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU()
        )
        self.quartered = nn.Sequential(
            nn.Conv2d(2 * width, 3 * width, 3, 2, 1), nn.BatchNorm2d(3 * width), nn.ReLU()
        )
        self.deep = nn.Sequential(
            nn.Conv2d(3 * width, 3 * width, 3, 1, 1), nn.BatchNorm2d(3 * width), nn.ReLU()
        )
        self.head = nn.Conv2d(3 * width, 1, 1)

    def forward(self, x):
        x = self.quartered(self.halved(self.first(x)))
        return self.head(x + self.deep(x))[:, 0]


def main():
    torch.manual_seed(72)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Field(Path(folder)), batch_size=BATCH, shuffle=True)
        model = EarNet()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        warm, step = min(10, STEPS // 2), 0
        while step < STEPS:
            for photos, where in loader:
                if step == warm:
                    start = time.perf_counter()
                loss = F.poisson_nll_loss(model(photos), where)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == STEPS:
                    break
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
