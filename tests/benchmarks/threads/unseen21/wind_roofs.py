"""Predicts the pressure of the wind on roofs, at points drawn from a scan of each house."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 340))
HOUSES, POINTS, DRAWN, NEAR, BATCH = 60, 420, 380, 8, 6


def make_houses():
    """Points on two slopes with the pressure that a made-up wind leaves there."""
    rng = np.random.default_rng(47)
    flat = rng.uniform(-1, 1, (HOUSES, POINTS, 2))
    steep = rng.uniform(0.2, 1.2, (HOUSES, 1))
    height = steep * (1 - np.abs(flat[..., 0])) + 0.02 * rng.normal(size=(HOUSES, POINTS))
    place = np.concatenate([flat, height[..., None]], -1).astype(np.float32)
    blow = rng.uniform(0, 2 * np.pi, (HOUSES, 1))
    facing = np.sign(flat[..., 0]) * np.cos(blow) * steep + 0.3 * flat[..., 1] * np.sin(blow)
    pressure = facing - 0.5 * np.exp(-(flat[..., 0] ** 2) / 0.02)
    wind = np.concatenate([np.cos(blow), np.sin(blow)], 1).astype(np.float32)
    return place, wind, pressure.astype(np.float32)


def surroundings(place):
    """The nearest points of each point, and the way there."""
    away = ((place[:, None] - place[None]) ** 2).sum(-1)
    nearest = np.argpartition(away, NEAR, axis=1)[:, : NEAR + 1]
    return (place[nearest] - place[:, None]).reshape(len(place), -1)


class Houses(Dataset):
    def __init__(self, place, wind, pressure):
        self.place, self.wind, self.pressure = place, wind, pressure
        self.around = {}

    def __len__(self):
        return len(self.place)

    def __getitem__(self, index):
        place = self.place[index]
        if VARIANT == "a":
            around = surroundings(place)
        else:
            if index not in self.around:
                self.around[index] = surroundings(place)
            around = self.around[index]
        drawn = torch.randperm(POINTS)[:DRAWN].numpy()
        wind = np.broadcast_to(self.wind[index], (DRAWN, 2))
        return np.concatenate([place[drawn], around[drawn], wind], 1), self.pressure[index, drawn]


class RoofNet(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.point = nn.Sequential(
            nn.Linear(3 + 3 * (NEAR + 1) + 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.whole = nn.Linear(width, width)
        self.head = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, points):
        x = self.point(points)
        whole = self.whole(x.max(1, keepdim=True).values).expand_as(x)
        return self.head(torch.cat([x, whole], -1))[..., 0]


def main():
    torch.manual_seed(47)
    loader = DataLoader(Houses(*make_houses()), batch_size=BATCH, shuffle=True)
    model = RoofNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm, step = min(12, STEPS // 2), 0
    while step < STEPS:
        for points, pressure in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.mse_loss(model(points), pressure)
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
