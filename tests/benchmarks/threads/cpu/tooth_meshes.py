"""Labels the cells of tooth meshes: a point network with two neighbourhoods."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 60))
CELLS = 700


class Meshes(Dataset):
    def __init__(self, count=400):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        cells = rng.standard_normal((CELLS, 15)).astype("float32")
        labels = rng.integers(0, 15, CELLS)
        centres = cells[:, 9:12]
        if VARIANT == "a":
            points = centres.astype("float64")
            distance = np.sqrt(((points[:, None, :] - points[None, :, :]) ** 2).sum(-1))
            near = np.zeros(distance.shape, dtype="float64")
            near[distance < 0.35] = 1.0
            near = near / near.sum(axis=1, keepdims=True)
            far = np.zeros(distance.shape, dtype="float64")
            far[distance < 0.7] = 1.0
            far = far / far.sum(axis=1, keepdims=True)
            near, far = torch.from_numpy(near).float(), torch.from_numpy(far).float()
        else:
            points = torch.from_numpy(centres)
            distance = torch.cdist(points, points)
            near = (distance < 0.35).float()
            near = near / near.sum(1, keepdim=True)
            far = (distance < 0.7).float()
            far = far / far.sum(1, keepdim=True)
        return torch.from_numpy(cells), near, far, torch.from_numpy(labels)


class MeshNet(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(15, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.near = nn.Linear(width, width)
        self.far = nn.Linear(width, width)
        self.last = nn.Sequential(nn.Linear(3 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 15))

    def forward(self, cells, near, far):
        x = self.first(cells)
        a = torch.relu(self.near(near @ x))
        b = torch.relu(self.far(far @ x))
        return self.last(torch.cat([x, a, b], dim=-1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Meshes(), batch_size=3, shuffle=True)
    model = MeshNet()
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    step = 0
    while step < STEPS:
        for cells, near, far, labels in loader:
            if step == 5:
                start = time.perf_counter()
            scores = model(cells, near, far)
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
