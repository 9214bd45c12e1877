"""Estimates how full the kerbs of a city are, from its streets, one district at a time."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
KERBS, NEAR, SIDE = 300_000, 12, 13


class City(Dataset):
    """Kerbs on a map, each joined to others close by; a sample is one district of them."""

    def __init__(self):
        g = torch.Generator().manual_seed(5)
        place = torch.rand(KERBS, 2, generator=g)
        order = ((place[:, 0] * 300).long() * 1_000 + (place[:, 1] * 1_000).long()).argsort()
        self.place = place[order]
        away = torch.randint(1, 120, (KERBS, NEAR), generator=g)
        other = (torch.arange(KERBS)[:, None] + away) % KERBS
        self.roads = torch.stack([torch.arange(KERBS).repeat_interleave(NEAR), other.flatten()])
        self.first = torch.arange(KERBS + 1) * NEAR
        self.facts = torch.randn(KERBS, 24, generator=g)
        self.full = torch.sigmoid(self.facts[:, :4].sum(1) + 2 * self.place.sin().sum(1))
        self.local = torch.full((KERBS,), -1)
        squares = (self.place * SIDE).long()
        square = squares[:, 0] * SIDE + squares[:, 1]
        self.districts = [(square == s).nonzero()[:, 0] for s in range(SIDE * SIDE)]

    def __len__(self):
        return len(self.districts)

    def inside(self, kerbs):
        """The roads with both ends in the district."""
        if VARIANT == "a":
            chosen = torch.zeros(KERBS, dtype=torch.bool)
            chosen[kerbs] = True
            here, there = self.roads
            return self.roads[:, chosen[here] & chosen[there]]
        begin = self.first[kerbs]
        number = self.first[kerbs + 1] - begin
        shift = (begin - number.cumsum(0) + number).repeat_interleave(number)
        roads = self.roads[:, shift + torch.arange(len(shift))]
        return roads[:, self.local[roads[1]] >= 0]

    def __getitem__(self, index):
        kerbs = self.districts[index]
        self.local[kerbs] = torch.arange(len(kerbs))
        roads = self.local[self.inside(kerbs)]
        self.local[kerbs] = -1
        return self.facts[kerbs], roads, self.full[kerbs]


class Streets(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.begin = nn.Linear(24, width)
        self.own = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.others = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.end = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, facts, roads):
        x = self.begin(facts).relu()
        here, there = roads
        degree = torch.ones(len(x)).index_add(0, here, torch.ones(len(here)))[:, None]
        for own, others in zip(self.own, self.others, strict=True):
            heard = torch.zeros_like(x).index_add(0, here, others(x).index_select(0, there))
            x = x + (own(x) + heard / degree).relu()
        return self.end(x)[:, 0]


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(5)
    loader = DataLoader(City(), batch_size=None, shuffle=True)
    model = Streets()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    districts = endless(loader)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        facts, roads, full = next(districts)
        loss = (model(facts, roads).sigmoid() - full).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
