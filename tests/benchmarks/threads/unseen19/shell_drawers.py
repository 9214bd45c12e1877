"""Names the family of a sea shell from a small photograph, one file for each shell."""

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
STEPS = int(os.environ.get("STEPS", 150))
SHELLS, SIDE, FAMILIES, BATCH = 1_000, 72, 10, 24


def fill_drawer(folder):
    """Whorls that differ in their turns and in their tint, as files below the folder."""
    rng = np.random.default_rng(52)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    families = rng.integers(0, FAMILIES, SHELLS)
    away, around = np.hypot(x, y), np.arctan2(y, x)
    photos = np.empty((SHELLS, 3, SIDE, SIDE), np.uint8)
    for i, family in enumerate(families):
        whorl = np.sin((2 + family % 5) * around + 9 * away + rng.uniform(0, 6))
        tint = 0.5 + 0.3 * np.array([1, -1, 0])[:, None, None] * (family // 5)
        photo = 90 + 70 * tint * whorl * (away < 0.9) + rng.normal(0, 12, (3, SIDE, SIDE))
        photos[i] = photo.clip(0, 255)
        if VARIANT == "a":
            np.save(folder / f"shell{i:05d}.npy", photos[i])
    if VARIANT != "a":
        np.save(folder / "shells.npy", photos)
    return families


class Drawer(Dataset):
    def __init__(self, folder, families):
        self.folder, self.families = folder, families
        self.photos = None if VARIANT == "a" else np.load(folder / "shells.npy", mmap_mode="r")

    def __len__(self):
        return len(self.families)

    def __getitem__(self, index):
        if VARIANT == "a":
            photo = np.load(self.folder / f"shell{index:05d}.npy")
        else:
            photo = np.array(self.photos[index])
        return torch.from_numpy(photo), int(self.families[index])


def block(into, out, stride):
    return nn.Sequential(
        nn.Conv2d(into, out, 3, stride, 1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
        nn.Conv2d(out, out, 3, 1, 1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    )


class ShellNet(nn.Module):
    def __init__(self, width=56):
        super().__init__()
        self.body = nn.Sequential(
            block(3, width, 2), block(width, 2 * width, 2), block(2 * width, 4 * width, 2)
        )
        self.head = nn.Linear(4 * width, FAMILIES)

    def forward(self, photos):
        return self.head(self.body(photos.float() / 128 - 1).mean((2, 3)))


def main():
    torch.manual_seed(52)
    with tempfile.TemporaryDirectory() as folder:
        families = fill_drawer(Path(folder))
        loader = DataLoader(Drawer(Path(folder), families), batch_size=BATCH, shuffle=True, drop_last=True)
        model = ShellNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        warm, step = min(10, STEPS // 2), 0
        while step < STEPS:
            for photos, wanted in loader:
                if step == warm:
                    start = time.perf_counter()
                loss = F.cross_entropy(model(photos), wanted)
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
