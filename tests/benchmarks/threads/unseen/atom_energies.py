"""Energies of molecules from their atoms and neighbours, compiled."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
MOLECULES, ATOMS, NEAR, WIDTH = 32, 20, 12, 24


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(WIDTH))
        self.width = nn.Parameter(torch.linspace(0.5, 2.0, WIDTH))
        self.mix = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, charge, distance, near, mol, count):
        shells = torch.exp(-((distance[..., None] - self.gate) * self.width).square())
        cutoff = 0.5 * (torch.cos(0.6 * distance.clamp(max=5.0)) + 1)
        message = (shells * cutoff[..., None] * torch.tanh(x[near])).sum(1)
        molecules = int(mol.max().item()) + 1 if VARIANT == "a" else count
        total = torch.zeros(molecules).index_add(0, mol, charge)
        charge = charge - (total / ATOMS)[mol]
        x = x + self.mix(torch.cat([message * charge[:, None], torch.sigmoid(x) * x], 1))
        return x, charge + 0.1 * torch.tanh(x.mean(1))


class AtomModel(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.kinds = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(Interaction() for _ in range(depth))
        self.out = nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, kind, distance, near, mol, count):
        x, charge = self.kinds(kind), torch.zeros(len(kind)) + 0.1
        for layer in self.layers:
            x, charge = layer(x, charge, distance, near, mol, count)
        molecules = int(mol.max().item()) + 1 if VARIANT == "a" else count
        return torch.zeros(molecules).index_add(0, mol, self.out(x).squeeze(1))


def main():
    torch.manual_seed(0)
    model = AtomModel()
    compiled = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    atoms = MOLECULES * ATOMS
    mol = torch.arange(MOLECULES).repeat_interleave(ATOMS)
    for step in range(STEPS):
        if step == 10:
            start = time.perf_counter()
        kind = torch.randint(0, 10, (atoms,))
        distance = 0.8 + 4 * torch.rand(atoms, NEAR)
        near = mol[:, None] * ATOMS + torch.randint(0, ATOMS, (atoms, NEAR))
        energy = torch.randn(MOLECULES)
        loss = (compiled(kind, distance, near, mol, MOLECULES) - energy).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")


if __name__ == "__main__":
    main()
