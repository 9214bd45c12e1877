"""Recognises garden tools, and where their handles are, from scans of a depth camera."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 170))
SCANS, POINTS, KEPT, TOOLS, BATCH = 400, 1_200, 128, 10, 12


class Scans(Dataset):
    """Clouds of points: a shaft, and a blade whose shape tells the tool."""

    def __init__(self):
        rng = np.random.default_rng(21)
        self.rng = np.random.default_rng(22)
        self.tool = rng.integers(0, TOOLS, SCANS)
        self.clouds, self.handles = [], []
        for tool in self.tool:
            along = rng.random(POINTS)
            blade = along > 0.7
            wide = np.where(blade, 0.1 + 0.05 * tool, 0.03)
            angle = rng.random(POINTS) * 6.2832
            cloud = np.stack([along, wide * np.cos(angle), wide * np.sin(angle * (1 + tool % 3))], 1)
            move = rng.normal(0, 0.3, 3)
            self.clouds.append((cloud + move + rng.normal(0, 0.01, cloud.shape)).astype(np.float32))
            self.handles.append(move.astype(np.float32))

    def __len__(self):
        return SCANS

    def thin(self, cloud):
        """Which points of the scan to keep."""
        if VARIANT == "b":
            return self.rng.choice(POINTS, KEPT, replace=False)
        kept = np.empty(KEPT, np.int64)
        kept[0] = self.rng.integers(POINTS)
        distance = np.full(POINTS, np.inf, np.float32)
        for n in range(1, KEPT):
            step = cloud - cloud[kept[n - 1]]
            distance = np.minimum(distance, (step * step).sum(1))
            kept[n] = distance.argmax()
        return kept

    def __getitem__(self, index):
        cloud = self.clouds[index]
        cloud = cloud[self.thin(cloud)] * self.rng.uniform(0.9, 1.1, 3).astype(np.float32)
        return cloud, int(self.tool[index]), self.handles[index]


class Tools(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.pairs = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 2 * width))
        self.tool = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, TOOLS))
        self.handle = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(self, clouds):
        x = self.points(clouds)
        whole = x.amax(1, keepdim=True).expand_as(x)
        x = self.pairs(torch.cat([x, whole], -1)).amax(1)
        return self.tool(x), self.handle(x)


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(21)
    loader = DataLoader(Scans(), batch_size=BATCH, shuffle=True, drop_last=True)
    model = Tools()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(5, STEPS // 2)
    batches = endless(loader)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        clouds, tool, handle = next(batches)
        scores, guess = model(clouds)
        loss = F.cross_entropy(scores, tool) + (guess - handle).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
