"""Sorts laser scans of orchard rows by the kind of tree, from the small boxes that hold points."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 170))
SCANS, POINTS, TREES, BATCH = 240, 6_000, 6, 8
EDGE, CELLS = 0.1, 64


def make_scans():
    """Crowns of different height and girth on a bumpy ground."""
    rng = np.random.default_rng(23)
    trees = rng.integers(0, TREES, SCANS)
    height, girth = 1.2 + 0.5 * (trees % 3), 0.5 + 0.4 * (trees // 3)
    scans = []
    for i in range(SCANS):
        ground = rng.uniform([-2, -2, 0], [2, 2, 0.1], (POINTS // 3, 3))
        crown = rng.normal(0, 1, (POINTS - len(ground), 3)) * girth[i] / 2
        crown[:, 2] += height[i]
        scans.append(np.concatenate([ground, crown]).astype(np.float32))
    return scans, trees


class Scans(Dataset):
    def __init__(self, scans, trees):
        self.scans, self.trees = scans, trees
        self.rng = np.random.default_rng(24)

    def __len__(self):
        return len(self.scans)

    def boxes(self, points):
        """Boxes that hold a point, and in which of them each point lies."""
        cells = np.clip(np.floor(points / EDGE) + CELLS // 2, 0, CELLS - 1).astype(np.int64)
        if VARIANT == "a":
            return np.unique(cells, axis=0, return_inverse=True)
        keys, member = np.unique(np.ravel_multi_index(cells.T, (CELLS,) * 3), return_inverse=True)
        return np.stack(np.unravel_index(keys, (CELLS,) * 3), 1), member

    def __getitem__(self, index):
        points = self.scans[index] + self.rng.normal(0, 0.02, (POINTS, 3)).astype(np.float32)
        angle = self.rng.uniform(0, 2 * np.pi)
        c, s = np.cos(angle), np.sin(angle)
        points = points @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]], np.float32)
        boxes, member = self.boxes(points)
        held = np.bincount(member.reshape(-1), minlength=len(boxes))
        middle = (boxes - CELLS // 2) * EDGE
        return np.concatenate([middle, np.log1p(held)[:, None]], 1).astype(np.float32), self.trees[index]


def collate(samples):
    """All boxes of the batch below each other, and the scan that each belongs to."""
    boxes = torch.from_numpy(np.concatenate([boxes for boxes, _ in samples]))
    owner = torch.repeat_interleave(torch.tensor([len(boxes) for boxes, _ in samples]))
    return boxes, owner, torch.tensor([int(tree) for _, tree in samples])


class TreeNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.again = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
        self.head = nn.Linear(2 * width, TREES)

    def whole(self, x, owner, scans):
        total = x.new_zeros(scans, x.shape[1]).index_add(0, owner, x)
        return total / torch.bincount(owner, minlength=scans)[:, None]

    def forward(self, boxes, owner, scans):
        x = self.each(boxes)
        around = self.whole(x, owner, scans)
        y = self.again(torch.cat([x, around[owner]], 1))
        return self.head(torch.cat([around, self.whole(y, owner, scans)], 1))


def main():
    torch.manual_seed(23)
    loader = DataLoader(Scans(*make_scans()), batch_size=BATCH, shuffle=True, collate_fn=collate)
    model = TreeNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for boxes, owner, trees in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.cross_entropy(model(boxes, owner, len(trees)), trees)
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
