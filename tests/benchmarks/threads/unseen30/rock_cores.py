"""Trains a network that names the layer from which a scanned piece of rock core was taken."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "800"))
BATCH = int(os.environ.get("BATCH", "4"))
SIDE = int(os.environ.get("SIDE", "96"))
CORES = int(os.environ.get("CORES", "6"))
CLASSES = 6


class ZScore:
    """Brings a volume to zero mean and unit deviation."""

    def __init__(self, eps=1e-6):
        self.eps = eps

    def __call__(self, volume):
        if VARIANT == "a":
            std, mean = torch.std_mean(volume)
        else:
            mean = torch.mean(volume)
            std = torch.std(volume)
        return volume.sub_(mean).div_(std + self.eps)


class RandomPiece:
    def __init__(self, side):
        self.side = side

    def __call__(self, core):
        corner = [int(torch.randint(0, n - self.side + 1, ())) for n in core.shape]
        x, y, z = corner
        return core[x : x + self.side, y : y + self.side, z : z + self.side].clone()


class CoreDataset(Dataset):
    def __init__(self, cores, labels, pieces, transforms):
        self.cores = cores
        self.labels = labels
        self.pieces = pieces
        self.transforms = transforms

    def __len__(self):
        return self.pieces

    def __getitem__(self, index):
        which = index % len(self.cores)
        volume = self.cores[which]
        for transform in self.transforms:
            volume = transform(volume)
        return volume.unsqueeze(0), self.labels[which]


class CoreNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.patch = nn.Conv3d(1, 12, 8, stride=8)
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Conv3d(12, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv3d(24, 32, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.body(self.patch(x)).mean(dim=(2, 3, 4)))


def make_cores(count):
    cores = []
    for number in range(count):
        core = torch.randn(SIDE + 12, SIDE + 12, SIDE + 12)
        core[:: number + 2] += 1.5
        cores.append(core * 40 + 300)
    return cores


def main():
    torch.manual_seed(31)
    cores = make_cores(CORES)
    labels = [number % CLASSES for number in range(CORES)]
    dataset = CoreDataset(cores, labels, STEPS * BATCH, [RandomPiece(SIDE), ZScore()])
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    model = CoreNet(CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step, (volumes, targets) in enumerate(loader):
        if step == warm:
            started = time.perf_counter()
        loss = F.cross_entropy(model(volumes), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
