"""Trains a network that sorts photos of plant seeds, each batch turned, moved and recoloured at random."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Bernoulli, Uniform

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "420"))
BATCH = int(os.environ.get("BATCH", "32"))
SIDE = int(os.environ.get("SIDE", "40"))
HIDDEN = int(os.environ.get("HIDDEN", "32"))
CLASSES = 8


class ParameterGenerator:
    """Draws the numbers by which the photos of a batch are changed."""

    def __init__(self, degrees, shift, scale, light):
        self.ranges = {
            "angle": (-degrees, degrees),
            "right": (-shift, shift),
            "down": (-shift, shift),
            "scale": scale,
            "bright": (-light, light),
            "contrast": (1 - light, 1 + light),
        }
        self.samplers = self.make_samplers() if VARIANT == "b" else None

    def make_samplers(self):
        samplers = {
            name: Uniform(torch.tensor(float(low)), torch.tensor(float(high)))
            for name, (low, high) in self.ranges.items()
        }
        samplers["mirror"] = Bernoulli(torch.tensor(0.5))
        return samplers

    def __call__(self, count):
        samplers = self.samplers or self.make_samplers()
        return {name: sampler.sample((count,)) for name, sampler in samplers.items()}


class BatchAugment(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = ParameterGenerator(degrees=30, shift=0.1, scale=(0.8, 1.2), light=0.2)

    @staticmethod
    def matrices(numbers):
        angle = numbers["angle"] * math.pi / 180
        cos, sin = torch.cos(angle) / numbers["scale"], torch.sin(angle) / numbers["scale"]
        side = 1 - 2 * numbers["mirror"]
        top = torch.stack([side * cos, -sin, numbers["right"]], dim=1)
        low = torch.stack([side * sin, cos, numbers["down"]], dim=1)
        return torch.stack([top, low], dim=1)

    @torch.no_grad()
    def forward(self, photos):
        numbers = self.generator(len(photos))
        grid = F.affine_grid(self.matrices(numbers), photos.shape, align_corners=False)
        photos = F.grid_sample(photos, grid, align_corners=False)
        contrast = numbers["contrast"].view(-1, 1, 1, 1)
        return photos * contrast + numbers["bright"].view(-1, 1, 1, 1)


class SeedNet(nn.Module):
    def __init__(self, hidden, classes):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, hidden, 3, padding=1),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(hidden, 2 * hidden, 3, padding=1),
            nn.BatchNorm2d(2 * hidden),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * hidden, classes),
        )

    def forward(self, photos):
        return self.net(photos)


def make_photos(count):
    kinds = torch.randint(0, CLASSES, (count,))
    colours = torch.rand(CLASSES, 3, 1, 1)
    line = torch.linspace(-1, 1, SIDE)
    body = (line[:, None] ** 2 * 3 + line[None] ** 2 < 0.6).float()
    return colours[kinds] * body + 0.3 * torch.rand(count, 3, SIDE, SIDE), kinds


def main():
    torch.manual_seed(19)
    photos, kinds = make_photos(512)
    augment = BatchAugment()
    model = SeedNet(HIDDEN, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    picks = torch.randint(0, len(photos), (STEPS, BATCH))

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        scores = model(augment(photos[picks[step]]))
        loss = F.cross_entropy(scores, kinds[picks[step]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
