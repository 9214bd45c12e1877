"""Fits the approximate posterior of a small regression of apple yields by stochastic gradients."""

from __future__ import annotations

import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1500"))
BATCH = int(os.environ.get("BATCH", "1536"))
TREES = int(os.environ.get("TREES", "8000"))
FEATURES = int(os.environ.get("FEATURES", "24"))
HIDDEN = int(os.environ.get("HIDDEN", "64"))
PARTICLES = int(os.environ.get("PARTICLES", "8"))


def make_orchard(trees, features):
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(trees, features, generator=generator)
    w = torch.randn(features, generator=generator) / math.sqrt(features)
    y = torch.tanh(x @ w) + 0.3 * x[:, 0] * x[:, 1] + 0.1 * torch.randn(trees, generator=generator)
    return x, y


def normal_log_prob(value, loc, scale):
    z = (value - loc) / scale
    return -0.5 * z * z - torch.log(scale) - 0.5 * math.log(2 * math.pi)


class Guide(nn.Module):
    """Independent normals over all weights of the regression."""

    def __init__(self, features, hidden):
        super().__init__()
        self.shapes = {"w1": (features, hidden), "b1": (1, hidden), "w2": (hidden, 1), "b2": (1, 1)}
        self.loc = nn.ParameterDict()
        self.log_scale = nn.ParameterDict()
        for k, shape in self.shapes.items():
            self.loc[k] = nn.Parameter(0.1 * torch.randn(shape))
            self.log_scale[k] = nn.Parameter(torch.full(shape, -3.0))

    def noise(self, particles, generator):
        return {k: torch.randn(particles, *s, generator=generator) for k, s in self.shapes.items()}

    def sample(self, noise):
        return {k: self.loc[k] + self.log_scale[k].exp() * noise[k] for k in self.shapes}

    def log_prob(self, weights):
        total = 0.0
        for k, value in weights.items():
            total = total + normal_log_prob(value, self.loc[k], self.log_scale[k].exp()).sum((-2, -1))
        return total


def predict(weights, x):
    hidden = torch.tanh(x @ weights["w1"] + weights["b1"])
    return (hidden @ weights["w2"] + weights["b2"]).squeeze(-1)


def model_log_prob(weights, x, y, share):
    one = torch.ones(())
    prior = sum(normal_log_prob(value, torch.zeros(()), one).sum((-2, -1)) for value in weights.values())
    fit = normal_log_prob(y, predict(weights, x), 0.2 * one).sum(-1)
    return prior + fit / share


def elbo_of(guide, noise, x, y, share):
    weights = guide.sample(noise)
    return model_log_prob(weights, x, y, share) - guide.log_prob(weights)


def elbo(guide, noise, x, y, share):
    """The bound, averaged over the particles."""
    if VARIANT == "b":
        return elbo_of(guide, noise, x, y, share).mean()
    total = 0.0
    for particle in range(PARTICLES):
        one = {k: value[particle] for k, value in noise.items()}
        total = total + elbo_of(guide, one, x, y, share) / PARTICLES
    return total


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    x, y = make_orchard(TREES, FEATURES)
    guide = Guide(FEATURES, HIDDEN)
    optimizer = torch.optim.Adam(guide.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, TREES, (BATCH,), generator=generator)
        noise = guide.noise(PARTICLES, generator)
        loss = -elbo(guide, noise, x[rows], y[rows], BATCH / TREES) / TREES
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
