"""Learns how the ponds of a canal network feed each other, from levels after opened sluices."""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "2600"))
BATCH = int(os.environ.get("BATCH", "16"))
PONDS = int(os.environ.get("PONDS", "160"))
DAYS = int(os.environ.get("DAYS", "2"))
TRIALS = int(os.environ.get("TRIALS", "200"))
SHUT = int(os.environ.get("SHUT", "6"))


def make_network(ponds):
    """Which part of the water of a pond flows into which other."""
    generator = torch.Generator().manual_seed(19)
    links = (torch.rand(ponds, ponds, generator=generator) < 6.0 / ponds).float()
    links.fill_diagonal_(0.0)
    share = links * torch.rand(ponds, ponds, generator=generator)
    return 0.7 * share / share.sum(0).clamp(min=1e-3)


def make_trials(network, trials, days, shut):
    """Trials with some ponds shut off: what ran in on each day and the levels that came of it."""
    generator = torch.Generator().manual_seed(23)
    ponds = len(network)
    open_ponds = torch.ones(trials, ponds)
    for trial in range(trials):
        open_ponds[trial, torch.randperm(ponds, generator=generator)[:shut]] = 0.0
    inflow = torch.rand(trials, ponds, days, generator=generator)
    system = torch.eye(ponds) - network * open_ponds[:, :, None]
    levels = torch.linalg.solve(system, inflow)
    return open_ponds, inflow, levels + 0.01 * torch.randn(levels.shape, generator=generator)


class Canals(nn.Module):
    def __init__(self, ponds):
        super().__init__()
        self.flow = nn.Parameter(torch.full((ponds, ponds), -6.0) + 0.1 * torch.randn(ponds, ponds))
        self.register_buffer("eye", torch.eye(ponds))
        self.register_buffer("others", 1.0 - torch.eye(ponds))

    def network(self):
        return torch.sigmoid(self.flow) * self.others

    def balance(self, open_ponds):
        """The linear system of each trial."""
        return self.eye - self.network() * open_ponds[:, :, None]

    def steady_levels(self, open_ponds, inflow):
        system = self.balance(open_ponds)
        if VARIANT == "a":
            return torch.bmm(torch.inverse(system), inflow)
        return torch.linalg.solve(system, inflow)

    def forward(self, open_ponds, inflow):
        return self.steady_levels(open_ponds, inflow)


def penalty(network):
    return 1e-4 * network.sum()


def main():
    torch.manual_seed(0)
    open_ponds, inflow, levels = make_trials(make_network(PONDS), TRIALS, DAYS, SHUT)
    generator = torch.Generator().manual_seed(1)
    model = Canals(PONDS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, TRIALS, (BATCH,), generator=generator)
        guess = model(open_ponds[rows], inflow[rows])
        loss = F.mse_loss(guess, levels[rows]) + penalty(model.network())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
