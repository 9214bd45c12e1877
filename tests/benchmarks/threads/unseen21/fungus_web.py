"""Sorts the finds of mushrooms of a forest by species, from what was seen at them and at the finds nearby."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
FINDS, LINKS, TRAITS, SPECIES = 6000, 70_000, 32, 12


def make_forest():
    """Finds of a species lie near one another; their traits are noisy."""
    g = torch.Generator().manual_seed(14)
    species = torch.randint(0, SPECIES, (FINDS,), generator=g).sort().values
    typical = torch.randn(SPECIES, TRAITS, generator=g)
    traits = typical[species] + 3 * torch.randn(FINDS, TRAITS, generator=g)
    one = torch.randint(0, FINDS, (LINKS,), generator=g)
    near = (one + (torch.randn(LINKS, generator=g) * FINDS / SPECIES / 2).long()) % FINDS
    return traits, species, torch.stack([torch.cat([one, near]), torch.cat([near, one])])


def balanced(links):
    """The links, each once, and one of each find to itself, weighted by how many both ends have."""
    own = torch.arange(FINDS)
    pairs = torch.cat([links[1], own]) * FINDS + torch.cat([links[0], own])
    pairs = torch.unique(pairs)
    source, target = pairs % FINDS, pairs // FINDS
    count = torch.zeros(FINDS).scatter_add_(0, target, torch.ones(len(target)))
    share = count.rsqrt()
    weight = share[source] * share[target]
    starts = F.pad(count.long().cumsum(0), (1, 0))
    return torch.sparse_csr_tensor(starts, source, weight, (FINDS, FINDS), check_invariants=False)


class Spread(nn.Module):
    """A linear layer, averaged over neighbours."""

    def __init__(self, into, out):
        super().__init__()
        self.linear = nn.Linear(into, out)
        self.kept = None

    def forward(self, x, links):
        if VARIANT == "a" or self.kept is None:
            self.kept = balanced(links)
        return self.kept @ self.linear(x)


class ForestNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        sizes = [TRAITS, width, width, SPECIES]
        self.layers = nn.ModuleList([Spread(a, b) for a, b in zip(sizes, sizes[1:], strict=False)])
        self.drop = nn.Dropout(0.3)

    def forward(self, traits, links):
        x = traits
        for layer in self.layers[:-1]:
            x = self.drop(F.relu(layer(x, links)))
        return self.layers[-1](x, links)


def main():
    torch.manual_seed(14)
    traits, species, links = make_forest()
    known = torch.rand(FINDS) < 0.2
    model = ForestNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        scores = model(traits, links)
        loss = F.cross_entropy(scores[known], species[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
