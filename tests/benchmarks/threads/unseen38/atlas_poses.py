"""Regresses body poses from small pictures; the annotations lie in a cache file."""

import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "900"))
PEOPLE, SIDE, JOINTS = 160, 48, 17
BATCH, WORKERS = 16, 2


def write_cache(path):
    rng = np.random.default_rng(4)
    poses = rng.normal(size=(PEOPLE, JOINTS, 3)).astype(np.float32)
    base = rng.normal(size=(JOINTS * 3, 3 * 12 * 12)).astype(np.float32)
    small = (poses.reshape(PEOPLE, -1) @ base).reshape(PEOPLE, 3, 12, 12)
    pictures = small.repeat(SIDE // 12, axis=2).repeat(SIDE // 12, axis=3)
    pictures = 127 + 12 * pictures + rng.normal(scale=6, size=pictures.shape)
    np.savez(
        path,
        pictures=pictures.clip(0, 255).astype(np.uint8),
        poses=poses,
        shapes=rng.normal(size=(PEOPLE, 10)).astype(np.float32),
    )


class AtlasDataset(Dataset):
    def __init__(self, path):
        self.path = path
        self.cache = None

    def __len__(self):
        return PEOPLE

    def load_cache(self):
        with np.load(self.path) as stored:
            self.cache = {name: stored[name] for name in stored.files}

    def __getitem__(self, i):
        if self.cache is None:
            self.load_cache()
        picture = torch.from_numpy(self.cache["pictures"][i]).float().div_(255.0)
        return {"picture": picture, "pose": self.cache["poses"][i], "shape": self.cache["shapes"][i]}


def build_dataloader(dataset):
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(9))
    return DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=WORKERS,
        drop_last=True,
        persistent_workers=VARIANT != "a",
    )


class AtlasBody(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 3
        for out in (24, 48, 64):
            layers += [
                nn.Conv2d(width, out, 3, stride=2, padding=1),
                nn.BatchNorm2d(out),
                nn.ReLU(),
                nn.Conv2d(out, out, 3, padding=1),
                nn.BatchNorm2d(out),
                nn.ReLU(),
            ]
            width = out
        self.trunk = nn.Sequential(*layers)
        self.pose = nn.Sequential(nn.Linear(width * 36, 128), nn.ReLU(), nn.Linear(128, JOINTS * 3))
        self.shape = nn.Linear(width * 36, 10)

    def forward(self, picture):
        h = self.trunk(picture).flatten(1)
        return self.pose(h).view(-1, JOINTS, 3), self.shape(h)


def train_epoch(model, loader, optimizer, step, clock):
    for batch in loader:
        if step == clock["warm"]:
            clock["start"] = time.perf_counter()
        pose, shape = model(batch["picture"])
        bones = (pose[:, 1:] - pose[:, :-1]) - (batch["pose"][:, 1:] - batch["pose"][:, :-1])
        loss = F.mse_loss(pose, batch["pose"]) + 0.1 * bones.abs().mean()
        loss = loss + 0.01 * F.mse_loss(shape, batch["shape"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            break
    return step, loss


def main():
    torch.manual_seed(2)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "atlas_cache.npz")
        write_cache(path)
        loader = build_dataloader(AtlasDataset(path))
        model = AtlasBody()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
        clock, step = {"warm": min(10, STEPS // 2)}, 0
        while step < STEPS:
            step, loss = train_epoch(model, loader, optimizer, step, clock)
        took = time.perf_counter() - clock["start"]
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * took / (STEPS - clock['warm']):.2f} ms per step")


if __name__ == "__main__":
    main()
