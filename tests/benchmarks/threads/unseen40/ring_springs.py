"""Energies, forces and stiffness matrices of small ring molecules."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 350))
ATOMS, SHELLS = 7, 16
FRAMES = 64
WIDTH = 128


class RingPotential(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.5, 4.0, SHELLS))
        first, second = torch.triu_indices(ATOMS, ATOMS, 1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.pair = nn.Sequential(
            nn.Linear(SHELLS, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)
        )

    def forward(self, places):
        """places: frames, atoms, 3"""
        gap = places[:, self.first] - places[:, self.second]
        length = (gap.square().sum(-1) + 1e-6).sqrt()
        shells = torch.exp(-4.0 * (length[..., None] - self.centres).square())
        return self.pair(shells).squeeze(-1).sum(-1)


def slope_of(model, places):
    energy = model(places)
    (slope,) = torch.autograd.grad(energy.sum(), places, create_graph=True)
    return energy, slope


def stiffness_of(model, ring):
    """The second derivatives of the energy of one ring, (3 atoms) x (3 atoms)."""
    ring = ring.clone().requires_grad_(True)
    _, slope = slope_of(model, ring)
    flat = slope.reshape(-1)
    size = flat.numel()
    if VARIANT == "a":
        rows = []
        for i in range(size):
            (row,) = torch.autograd.grad(flat[i], ring, create_graph=True)
            rows.append(row.reshape(-1))
        return torch.stack(rows)

    def product(direction):
        return torch.autograd.grad(flat, ring, direction, create_graph=True)[0].reshape(-1)

    return torch.vmap(product)(torch.eye(size))


def springs(places):
    """The truth: springs between all pairs of atoms."""
    gap = places[:, :, None] - places[:, None, :]
    length = (gap.square().sum(-1) + 1e-6).sqrt()
    return 0.25 * (length - 1.8).square().sum((1, 2))


def ring_frames(count, gen):
    angle = torch.arange(ATOMS) * (2 * torch.pi / ATOMS)
    flat = torch.stack((angle.cos(), angle.sin(), torch.zeros(ATOMS)), dim=1) * 1.6
    return flat + 0.1 * torch.randn(count, ATOMS, 3, generator=gen)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(9)
    model = RingPotential()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    total, begin = 0.0, time.perf_counter()
    for step in range(STEPS):
        places = ring_frames(FRAMES, gen).requires_grad_(True)
        target = springs(places)
        (target_slope,) = torch.autograd.grad(target.sum(), places)
        ring = ring_frames(1, gen)
        target_stiff = torch.autograd.functional.hessian(
            lambda x: springs(x).sum(), ring, vectorize=True
        ).reshape(3 * ATOMS, 3 * ATOMS)
        energy, slope = slope_of(model, places)
        loss = (
            0.1 * F.mse_loss(energy, target.detach())
            + F.mse_loss(slope, target_slope)
            + F.mse_loss(stiffness_of(model, ring), target_stiff)
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if step + 1 == warm:
            begin = time.perf_counter()
    spent = time.perf_counter() - begin
    print(f"loss {total / STEPS:.4f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
