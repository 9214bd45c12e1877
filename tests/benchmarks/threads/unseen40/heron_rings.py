"""Heron re-identification: an embedding of crops, trained with triplets of known birds."""

import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
CROPS = 150_000
BIRDS = 600
HEIGHT, WIDTH = 24, 16
P, K = 8, 6


class HeronCrops(Dataset):
    def __init__(self):
        rng = np.random.default_rng(3)
        self.birds = rng.integers(0, BIRDS, CROPS).tolist()
        self.pixels = rng.integers(0, 200, (CROPS, 3, HEIGHT, WIDTH), dtype=np.uint8)
        tint = rng.integers(0, 55, (BIRDS, 3, 1, 1), dtype=np.uint8)
        self.pixels += tint[np.asarray(self.birds)]

    def __len__(self):
        return CROPS

    def __getitem__(self, index):
        crop = torch.from_numpy(self.pixels[index]).float().div_(255.0)
        return crop, self.birds[index]


class RingSampler(Sampler):
    """Batches of P birds with K crops each."""

    def __init__(self, labels, p, k, batches):
        self.p = p
        self.k = k
        self.batches = batches
        self.classes = sorted(set(labels))
        self.labels = labels if VARIANT == "a" else np.array(labels)
        self.draw = random.Random(17)

    def crops_of(self, bird):
        if VARIANT == "a":
            return [i for i, label in enumerate(self.labels) if label == bird]
        return np.where(self.labels == bird)[0].tolist()

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            indices = []
            for bird in self.draw.sample(self.classes, self.p):
                owned = self.crops_of(bird)
                if len(owned) >= self.k:
                    indices += self.draw.sample(owned, self.k)
                else:
                    indices += self.draw.choices(owned, k=self.k)
            yield indices


class PlumageNet(nn.Module):
    def __init__(self, width=48, dim=96):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, dim)

    def forward(self, crops):
        return F.normalize(self.head(self.body(crops)), dim=1)


def hardest_triplets(codes, birds, margin=0.3):
    dist = torch.cdist(codes, codes)
    same = birds[:, None] == birds[None, :]
    far = (dist * same).amax(dim=1)
    near = (dist + 10.0 * same).amin(dim=1)
    return F.relu(far - near + margin).mean()


def main():
    torch.manual_seed(0)
    data = HeronCrops()
    loader = DataLoader(data, batch_sampler=RingSampler(data.birds, P, K, STEPS))
    model = PlumageNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    warm = min(10, STEPS // 2)
    total, begin = 0.0, time.perf_counter()
    for step, (crops, birds) in enumerate(loader):
        loss = hardest_triplets(model(crops), birds)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if step + 1 == warm:
            begin = time.perf_counter()
    spent = time.perf_counter() - begin
    print(f"loss {total / STEPS:.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
