"""Energies and forces of atoms from descriptors."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 60))
ATOMS, NEIGHBOURS = 96, 24


class Descriptor(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.fit = nn.Sequential(
            nn.Linear(width * 8, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, 1)
        )

    def forward(self, positions, pairs):
        offsets = positions[:, pairs] - positions[:, :, None]
        distance = offsets.square().sum(-1, keepdim=True).add(0.1).sqrt()
        weights = self.embed(1 / distance)
        frame = torch.cat([1 / distance, offsets / distance**2], dim=-1)
        mixed = weights.transpose(-1, -2) @ frame
        d = (mixed @ mixed[..., :8, :].transpose(-1, -2)).flatten(2)
        return self.fit(d).sum((1, 2))


def main():
    torch.manual_seed(0)
    model = Descriptor()
    if VARIANT == "a":
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    pairs = torch.randint(0, ATOMS, (ATOMS, NEIGHBOURS))
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        positions = torch.randn(6, ATOMS, 3).requires_grad_()
        energy = model(positions, pairs)
        (forces,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        loss = energy.square().mean() + 0.1 * (forces + positions).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
