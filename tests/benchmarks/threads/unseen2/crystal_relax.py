"""Energies and forces of crystals from pair distances."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
CELLS, ATOMS, RADIAL, BATCH = 64, 32, 24, 6
if VARIANT == "a":
    torch.set_default_dtype(torch.float64)


def structures():
    rng = np.random.default_rng(0)
    positions = rng.uniform(0, 6, (CELLS, ATOMS, 3))
    energies = rng.normal(-10, 1, CELLS)
    forces = rng.normal(0, 0.1, (CELLS, ATOMS, 3))
    return [torch.tensor(each, dtype=torch.get_default_dtype()) for each in (positions, energies, forces)]


class Potential(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.2, 3, RADIAL))
        self.pair = nn.Sequential(nn.Linear(RADIAL, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.atom = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, positions):
        apart = positions[:, :, None] - positions[:, None]
        radius = (apart.square().sum(-1) + 1e-4).sqrt()
        radial = torch.cos(radius[..., None] * self.centres) / (1 + radius[..., None])
        return self.atom(self.pair(radial).sum(2)).sum((1, 2))


def main():
    torch.manual_seed(0)
    all_positions, all_energies, all_forces = structures()
    model = Potential()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        picked = torch.randint(0, CELLS, (BATCH,))
        positions = all_positions[picked].requires_grad_()
        energies = model(positions)
        forces = -torch.autograd.grad(energies.sum(), positions, create_graph=True)[0]
        loss = (energies - all_energies[picked]).square().mean() / ATOMS
        loss = loss + 10 * (forces - all_forces[picked]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
