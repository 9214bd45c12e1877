"""Energies and forces of atoms from an equivariant network with features up to degree two."""

import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

DEGREES, GROUPS = 2, 2
PLACES = (DEGREES + 1) ** 2
CHANNELS = 8 if SMALL else 64
BLOCKS = 2 if SMALL else 3
ATOMS = 12 if SMALL else 96
BATCH = 2 if SMALL else 5
FRAMES = 8 if SMALL else 240
NEIGHBOURS, CUTOFF, RADIAL = 8, 5.0, 16
FORCE_WEIGHT = 10.0


class DegreeLinear(nn.Module):
    """A linear map of the channels, one for each degree and group."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DEGREES + 1, GROUPS, inputs, outputs) / math.sqrt(inputs))
        degree_of_place = [degree for degree in range(DEGREES + 1) for _ in range(2 * degree + 1)]
        self.register_buffer("degree_of_place", torch.tensor(degree_of_place))

    def forward(self, x):
        weight = self.weight.index_select(0, self.degree_of_place)
        if VARIANT == "a":
            return torch.matmul(x[..., None, :], weight[None]).squeeze(-2)
        return torch.matmul(x.permute(1, 2, 0, 3), weight).permute(2, 0, 1, 3)


def harmonics(direction):
    """Real spherical harmonics up to degree two of unit vectors."""
    x, y, z = direction.unbind(-1)
    three, fifteen, five = math.sqrt(3), math.sqrt(15), math.sqrt(5)
    parts = [torch.ones_like(x), three * y, three * z, three * x]
    parts += [fifteen * x * y, fifteen * y * z, five / 2 * (3 * z * z - 1), fifteen * x * z]
    parts.append(fifteen / 2 * (x * x - y * y))
    return torch.stack(parts, dim=-1)


class RadialBasis(nn.Module):
    """Bumps along the distance, with a smooth end at the cutoff."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.5, CUTOFF, RADIAL))

    def forward(self, distance):
        bumps = torch.exp(-4.0 * (distance.unsqueeze(-1) - self.centres) ** 2)
        return bumps * 0.5 * (torch.cos(math.pi * distance / CUTOFF) + 1).unsqueeze(-1)


class Gate(nn.Module):
    """Scalars pass an activation; the higher degrees are scaled by gates of the scalars."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        scalars = x[:, :1]
        return torch.cat([F.silu(scalars), x[:, 1:] * torch.sigmoid(self.gate(scalars))], dim=1)


class Interaction(nn.Module):
    """Messages along the edges, an update of the atoms, a gated feed-forward part."""

    def __init__(self):
        super().__init__()
        self.radial = nn.Sequential(nn.Linear(RADIAL, 64), nn.SiLU(), nn.Linear(64, GROUPS * CHANNELS))
        self.before, self.after = DegreeLinear(CHANNELS, CHANNELS), DegreeLinear(CHANNELS, CHANNELS)
        self.inner, self.outer = DegreeLinear(CHANNELS, CHANNELS), DegreeLinear(CHANNELS, CHANNELS)
        self.gate = Gate()

    def forward(self, x, source, target, shape, basis):
        weights = self.radial(basis).view(-1, 1, GROUPS, CHANNELS)
        values = self.before(x)
        sent = values[:, :1].index_select(0, source) * shape[:, :, None, None] * weights
        sent = sent + values.index_select(0, source) * weights
        gathered = torch.zeros_like(x).index_add(0, target, sent) / math.sqrt(NEIGHBOURS)
        x = x + self.after(gathered)
        return x + self.outer(self.gate(self.inner(x)))


class Potential(nn.Module):
    """Energies of frames; forces follow as their slopes."""

    def __init__(self):
        super().__init__()
        self.species = nn.Embedding(4, GROUPS * CHANNELS)
        self.basis = RadialBasis()
        self.blocks = nn.ModuleList(Interaction() for _ in range(BLOCKS))
        self.energy = nn.Sequential(nn.Linear(GROUPS * CHANNELS, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, batch):
        positions = batch["positions"].detach().requires_grad_(True)
        source, target = batch["source"], batch["target"]
        vector = positions.index_select(0, source) - positions.index_select(0, target)
        distance = vector.norm(dim=-1)
        shape, basis = harmonics(vector / distance.unsqueeze(-1)), self.basis(distance)
        scalars = self.species(batch["species"]).view(-1, 1, GROUPS, CHANNELS)
        x = torch.cat([scalars, scalars.new_zeros(len(scalars), PLACES - 1, GROUPS, CHANNELS)], dim=1)
        for block in self.blocks:
            x = block(x, source, target, shape, basis)
        energy = self.energy(x[:, 0].flatten(1)).view(-1, ATOMS).sum(1)
        forces = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
        return energy, forces


def make_frames():
    """Frames of jiggled lattices with their neighbours, energies and forces of springs."""
    rng = np.random.default_rng(13)
    side = math.ceil(ATOMS ** (1 / 3))
    lattice = np.stack(np.meshgrid(*[np.arange(side)] * 3), axis=-1).reshape(-1, 3)[:ATOMS] * 1.8
    frames = []
    for _ in range(FRAMES):
        positions = lattice + rng.normal(0, 0.15, lattice.shape)
        offsets = positions[None] - positions[:, None]
        distances = np.linalg.norm(offsets, axis=-1) + 100 * np.eye(ATOMS)
        near = np.argsort(distances, axis=1)[:, :NEIGHBOURS]
        stretch = np.take_along_axis(distances, near, axis=1) - 1.8
        direction = np.take_along_axis(offsets, near[:, :, None], axis=1)
        direction = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
        frame = {
            "positions": torch.tensor(positions, dtype=torch.float32),
            "species": torch.from_numpy(rng.integers(0, 4, ATOMS)),
            "source": torch.from_numpy(near.reshape(-1)),
            "target": torch.arange(ATOMS).repeat_interleave(NEIGHBOURS),
            "energy": torch.tensor([float((stretch**2).sum() / 2)]),
            "forces": torch.tensor((stretch[:, :, None] * direction).sum(1), dtype=torch.float32),
        }
        frames.append(frame)
    return frames


def join(frames):
    """One batch of several frames, the atoms numbered through."""
    batch = {name: torch.cat([frame[name] for frame in frames]) for name in frames[0]}
    offset = torch.arange(len(frames)).repeat_interleave(ATOMS * NEIGHBOURS) * ATOMS
    batch["source"], batch["target"] = batch["source"] + offset, batch["target"] + offset
    return {name: tensor.to(device) for name, tensor in batch.items()}


def main():
    torch.manual_seed(0)
    frames = make_frames()
    batches = [join(frames[i : i + BATCH]) for i in range(0, FRAMES, BATCH)]
    mean_energy = torch.cat([frame["energy"] for frame in frames]).mean().item()
    model = Potential().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9995)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = batches[step % len(batches)]
        energy, forces = model(batch)
        loss_energy = ((energy - batch["energy"] + mean_energy) / ATOMS).pow(2).mean()
        loss_force = (forces - batch["forces"]).pow(2).mean()
        last = loss_energy + FORCE_WEIGHT * loss_force
        optimizer.zero_grad()
        last.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 499:
            rms = (loss_energy.detach().sqrt().item(), loss_force.detach().sqrt().item())
            print(f"step {step + 1}: energy {rms[0]:.4f}, forces {rms[1]:.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
