"""Trains a plant classifier on a stream of new sheets, with a memory of sheets seen before."""

from __future__ import annotations

import os
import random
import time
from bisect import bisect_right

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1200"))
FRESH = int(os.environ.get("FRESH", "16"))
RECALLED = int(os.environ.get("RECALLED", "96"))
MEMORY = int(os.environ.get("MEMORY", "3000"))
PASSES = int(os.environ.get("PASSES", "8"))
SEEN = int(os.environ.get("SEEN", "160"))
SIZE = int(os.environ.get("SIZE", "24"))
WIDTH = int(os.environ.get("WIDTH", "16"))
SPECIES = int(os.environ.get("SPECIES", "30"))


class Sheets:
    """Scans of all sheets of the herbarium with the species on them."""

    def __init__(self, count, size, species):
        generator = torch.Generator().manual_seed(9)
        self.species = torch.randint(0, species, (count,), generator=generator).tolist()
        looks = torch.randn(species, 3, size, size, generator=generator)
        self.scans = 0.5 * looks[self.species] + 0.5 * torch.randn(count, 3, size, size, generator=generator)

    def __len__(self):
        return len(self.species)

    def __getitem__(self, index):
        return self.scans[index], self.species[index]


class Picked:
    """Some of the sheets of a collection."""

    def __init__(self, sheets, indices):
        self.sheets = sheets
        self.indices = list(indices)

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        return self.sheets[self.indices[index]]


class Joined:
    """Two collections, one after the other."""

    def __init__(self, parts):
        self.parts = parts
        self.starts = [0, len(parts[0])]
        self.total = sum(len(part) for part in parts)

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        part = bisect_right(self.starts, index) - 1
        return self.parts[part][index - self.starts[part]]


def remember(memory, fresh, rng):
    """The memory after some fresh sheets: a random choice of both."""
    total = len(memory) + len(fresh)
    keep = sorted(rng.sample(range(total), min(MEMORY, total)))
    if VARIANT == "b":
        indices = memory.indices + fresh.indices
        return Picked(memory.sheets, [indices[k] for k in keep])
    return Picked(Joined([memory, fresh]), keep)


def collate(items):
    return torch.stack([scan for scan, _ in items]), torch.tensor([species for _, species in items])


def make_model(width, species):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, species),
    )


def main():
    torch.manual_seed(0)
    rng = random.Random(1)
    stream = Sheets((SEEN + STEPS // PASSES + 2) * FRESH, SIZE, SPECIES)
    memory = Picked(stream, range(FRESH))
    for part in range(1, SEEN):
        memory = remember(memory, Picked(stream, range(part * FRESH, (part + 1) * FRESH)), rng)
    model = make_model(WIDTH, SPECIES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        part = SEEN + step // PASSES
        fresh = Picked(stream, range(part * FRESH, (part + 1) * FRESH))
        items = [fresh[k] for k in range(FRESH)]
        items += [memory[k] for k in rng.sample(range(len(memory)), RECALLED)]
        scans, species = collate(items)
        loss = F.cross_entropy(model(scans), species)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % PASSES == PASSES - 1:
            memory = remember(memory, fresh, rng)
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
