"""Trains a model of how many moths of each species light traps catch, given the weather."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1200"))
BATCH = int(os.environ.get("BATCH", "256"))
NIGHTS = int(os.environ.get("NIGHTS", "3000"))
WEATHER = int(os.environ.get("WEATHER", "16"))
SPECIES = int(os.environ.get("SPECIES", "1500"))
HIDDEN = int(os.environ.get("HIDDEN", "128"))


def make_catches(nights, weather, species):
    """Weather of each night and the moths in the trap, nearly all species missing on most nights."""
    generator = torch.Generator().manual_seed(13)
    x = torch.randn(nights, weather, generator=generator)
    liking = torch.randn(weather, species, generator=generator) / weather**0.5
    common = torch.randn(species, generator=generator) - 3.6
    rate = torch.exp(x @ liking + common)
    return x, torch.poisson(rate.clamp(max=60.0), generator=generator)


def log_beta_one(alpha, count):
    """log B(1 + count, alpha) up to terms that the counts alone decide."""
    return torch.lgamma(alpha + count) - torch.lgamma(alpha) - torch.lgamma(1 + count)


class CatchDistribution:
    """Dirichlet-multinomial: moths shared among the species."""

    def __init__(self, alpha):
        self.alpha = alpha

    def per_species(self, counts):
        if VARIANT == "a":
            return log_beta_one(self.alpha, counts)
        caught = counts != 0
        terms = torch.zeros_like(self.alpha)
        terms[caught] = log_beta_one(self.alpha[caught], counts[caught])
        return terms

    def log_prob(self, counts):
        total = counts.sum(-1)
        strength = self.alpha.sum(-1)
        whole = torch.lgamma(1 + total) + torch.lgamma(strength) - torch.lgamma(total + strength)
        return whole + self.per_species(counts).sum(-1)


class CatchNet(nn.Module):
    """From the weather to the strength of each species."""

    def __init__(self, weather, hidden, species):
        super().__init__()
        self.first = nn.Linear(weather, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, species)

    def forward(self, weather):
        hidden = torch.relu(self.first(weather))
        hidden = torch.relu(self.second(hidden))
        return CatchDistribution(F.softplus(self.last(hidden)) + 0.01)


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def main():
    torch.manual_seed(0)
    weather, counts = make_catches(NIGHTS, WEATHER, SPECIES)
    generator = torch.Generator().manual_seed(1)
    model = CatchNet(WEATHER, HIDDEN, SPECIES)
    optimizer = make_optimizer(model)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, NIGHTS, (BATCH,), generator=generator)
        catch = model(weather[rows])
        loss = -catch.log_prob(counts[rows]).mean() / SPECIES
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
