"""Trains a classifier of web shops that weighs what their neighbours, and theirs, look like."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "850"))
SHOPS = int(os.environ.get("SHOPS", "6000"))
FEATURES = int(os.environ.get("FEATURES", "200"))
HOPS = int(os.environ.get("HOPS", "6"))
LINKS = int(os.environ.get("LINKS", "12"))
KINDS = int(os.environ.get("KINDS", "12"))


def make_shops(shops, features, kinds):
    generator = torch.Generator().manual_seed(17)
    kind = torch.randint(0, kinds, (shops,), generator=generator)
    centres = torch.randn(kinds, features, generator=generator)
    looks = 0.3 * centres[kind] + torch.randn(shops, features, generator=generator)
    neighbours = torch.randint(0, shops, (shops, LINKS), generator=generator)
    return looks, kind, neighbours


def spread(looks, neighbours, hops):
    """Looks of the shops themselves, of their neighbours on average, and so on; done once."""
    levels = [looks]
    for _ in range(hops):
        levels.append(0.5 * levels[-1] + 0.5 * levels[-1][neighbours].mean(1))
    return levels


class Gate(nn.Module):
    """How much one level says about each shop."""

    def __init__(self, features):
        super().__init__()
        self.att = nn.Parameter(0.05 * torch.randn(1, features))
        self.bias = nn.Parameter(torch.zeros(1))

    def score(self, looks):
        if VARIANT == "a":
            return (looks * self.att).sum(dim=-1)
        return (looks @ self.att.t()).squeeze(-1)

    def forward(self, looks):
        return F.leaky_relu(self.score(looks) + self.bias, 0.2)


class HopNet(nn.Module):
    """Levels turned into hidden features, weighed by their gates, added up and classified."""

    def __init__(self, features, hops, kinds):
        super().__init__()
        self.gates = nn.ModuleList([Gate(features) for _ in range(hops + 1)])
        self.mix = nn.Linear(features, kinds)

    def weights(self, levels):
        scores = [gate(level) for gate, level in zip(self.gates, levels)]
        return torch.stack(scores, dim=1).softmax(dim=1)

    def forward(self, levels):
        weights = self.weights(levels)
        total = 0.0
        for hop, level in enumerate(levels):
            total = total + weights[:, hop, None] * self.mix(level)
        return total


def accuracy(scores, kind):
    return (scores.argmax(1) == kind).float().mean().item()


def main():
    torch.manual_seed(0)
    looks, kind, neighbours = make_shops(SHOPS, FEATURES, KINDS)
    levels = spread(looks, neighbours, HOPS)
    model = HopNet(FEATURES, HOPS, KINDS)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    scores, loss = None, None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        scores = model(levels)
        loss = F.cross_entropy(scores, kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"accuracy {accuracy(scores, kind):.3f}")
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
