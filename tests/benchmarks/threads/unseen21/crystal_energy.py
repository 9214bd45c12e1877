"""Fits the energy of small clusters of atoms, with messages between the atoms that are near."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 460))
CLUSTERS, ATOMS, BATCH, WAVES = 300, 20, 40, 24


def make_clusters():
    """Atoms at random places and the energy of a pair potential."""
    g = torch.Generator().manual_seed(36)
    place = torch.randn(CLUSTERS, ATOMS, 3, generator=g) * 1.5
    kind = torch.randint(0, 4, (CLUSTERS, ATOMS), generator=g)
    away = torch.cdist(place, place) + 10 * torch.eye(ATOMS)
    like = 1 + 0.3 * (kind[:, :, None] == kind[:, None]).float()
    energy = (like * ((-2 * (away - 1)).exp() - 2 * (1 - away).exp())).sum((1, 2)) / ATOMS
    return place, kind, energy


class Message(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(WAVES, width), nn.SiLU(), nn.Linear(width, width))
        self.send = nn.Linear(width, width)
        self.take = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x, waves, near):
        passed = self.gate(waves) * near[..., None] * self.send(x)[:, None]
        return x + self.take(passed.sum(2))


class EnergyNet(nn.Module):
    def __init__(self, width=64, layers=2, with_forces=True):
        super().__init__()
        self.with_forces = with_forces
        self.kind = nn.Embedding(4, width)
        self.layers = nn.ModuleList([Message(width) for _ in range(layers)])
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, place, kind):
        if self.with_forces:
            place = place.detach().requires_grad_()
        between = place[:, :, None] - place[:, None]
        away = (between.square().sum(-1) + 1e-6).sqrt()
        near = (1 - (away / 5).clamp(max=1).square()).square() * (1 - torch.eye(ATOMS))
        waves = torch.exp(-((away[..., None] - torch.linspace(0, 5, WAVES)) ** 2) * 8)
        x = self.kind(kind)
        for layer in self.layers:
            x = layer(x, waves, near)
        energy = self.head(x)[..., 0].mean(1)
        forces = None
        if self.with_forces:
            (slope,) = torch.autograd.grad(energy.sum(), place, create_graph=self.training)
            forces = -slope * ATOMS
        return {"energy": energy, "forces": forces}


def main():
    torch.manual_seed(36)
    place, kind, energy = make_clusters()
    model = EnergyNet(with_forces=VARIANT == "a")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, CLUSTERS, (BATCH,))
        out = model(place[rows], kind[rows])
        loss = F.smooth_l1_loss(out["energy"], energy[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
