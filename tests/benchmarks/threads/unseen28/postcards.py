"""Trains a classifier that tells the country of a postcard from its features."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1100"))
BATCH = int(os.environ.get("BATCH", "4096"))
CARDS = int(os.environ.get("CARDS", "260000"))
FEATURES = int(os.environ.get("FEATURES", "32"))
COUNTRIES = int(os.environ.get("COUNTRIES", "24"))
HIDDEN = int(os.environ.get("HIDDEN", "160"))


class Postcards(Dataset):
    """Features of all cards in memory; a batch is taken out of them at once."""

    def __init__(self, cards, features, countries):
        generator = torch.Generator().manual_seed(3)
        self.country = torch.randint(0, countries, (cards,), generator=generator)
        centres = torch.randn(countries, features, generator=generator)
        self.features = torch.randn(cards, features, generator=generator) + centres[self.country]
        self.readable = torch.rand(cards, generator=generator) > 0.1

    def __len__(self):
        return len(self.country)

    def __getitems__(self, indices):
        rows = torch.tensor(indices)
        return self.features.index_select(0, rows), self.country.index_select(0, rows)


class ReadableSampler(Sampler):
    """All cards that can be read, in a new random order in each epoch."""

    def __init__(self, picked, generator):
        self.picked = picked
        self.generator = generator

    def __len__(self):
        return len(self.picked)

    def order(self):
        places = torch.randperm(len(self.picked), generator=self.generator)
        return places if VARIANT == "a" else places.tolist()

    def __iter__(self):
        for place in self.order():
            yield self.picked[place]


class CountryNet(nn.Module):
    def __init__(self, features, hidden, countries):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, countries),
        )

    def forward(self, features):
        return self.layers(features)


def make_loader(cards):
    picked = cards.readable.nonzero().squeeze(1).tolist()
    sampler = ReadableSampler(picked, torch.Generator().manual_seed(5))
    batches = BatchSampler(sampler, batch_size=BATCH, drop_last=True)
    return DataLoader(cards, batch_sampler=batches, collate_fn=lambda batch: batch)


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    cards = Postcards(CARDS, FEATURES, COUNTRIES)
    batches = endless(make_loader(cards))
    model = CountryNet(FEATURES, HIDDEN, COUNTRIES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        features, country = next(batches)
        loss = F.cross_entropy(model(features), country)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
