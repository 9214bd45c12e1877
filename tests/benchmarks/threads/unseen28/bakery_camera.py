"""Trains a network that grades loaves from photos of the belt of a bakery."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "180"))
BATCH = int(os.environ.get("BATCH", "48"))
PHOTOS = int(os.environ.get("PHOTOS", "2000"))
SIZE = int(os.environ.get("SIZE", "40"))
WIDTH = int(os.environ.get("WIDTH", "32"))
BLOCKS = int(os.environ.get("BLOCKS", "6"))
GRADES = int(os.environ.get("GRADES", "5"))


class Photos:
    """Photos of loaves in memory, with their grades."""

    def __init__(self, count, size, grades):
        generator = torch.Generator().manual_seed(29)
        self.grade = torch.randint(0, grades, (count,), generator=generator)
        crusts = torch.randn(grades, 3, size, size, generator=generator)
        self.photos = crusts[self.grade] + torch.randn(count, 3, size, size, generator=generator)
        self.generator = generator

    def draw(self, count):
        rows = torch.randint(0, len(self.grade), (count,), generator=self.generator)
        return self.photos[rows], self.grade[rows]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width))
        self.drop = nn.Dropout(0.05)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(x + self.drop(self.second(self.first(x))))


class LoafNet(nn.Module):
    def __init__(self, width, blocks, grades):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU())
        self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, grades))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


@torch.no_grad()
def check(model, photos, grade):
    """The share of a few photos that the network grades rightly without its dropout."""
    model.eval()
    right = (model(photos).argmax(1) == grade).float().mean()
    model.train()
    return right


class Modes:
    """Puts the network into the mode that the next part of the step needs."""

    def __init__(self, model):
        self.model = model
        self.each_step = VARIANT == "a"
        model.train()

    def begin(self):
        if self.each_step:
            self.model.train()

    def end(self):
        if self.each_step:
            self.model.eval()
            self.model.train()


def main():
    torch.manual_seed(0)
    photos = Photos(PHOTOS, SIZE, GRADES)
    held_photos, held_grade = photos.draw(16)
    model = LoafNet(WIDTH, BLOCKS, GRADES)
    modes = Modes(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        modes.begin()
        images, grade = photos.draw(BATCH)
        loss = F.cross_entropy(model(images), grade)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        modes.end()
    elapsed = time.perf_counter() - start
    print(f"right {check(model, held_photos, held_grade).item():.3f}")
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
