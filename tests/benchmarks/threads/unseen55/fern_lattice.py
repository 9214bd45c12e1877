"""Energies and forces of small crystals: training a potential on frames of simulations.

python fern_lattice.py
"""

import os
import tempfile
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2600))
WARM_UP = 5

ATOMS = 48
FRAMES = 4800
SETS = 3
BATCH = 8
WIDTH = 48


def simulate(folder):
    """Write the sets of one system, each with its coordinates, forces, boxes and energies."""
    rng = np.random.default_rng(2)
    side = np.stack(np.meshgrid(range(4), range(4), range(3)), -1).reshape(-1, 3) * 2.5
    for number in range(SETS):
        place = folder / f"set.{number:03d}"
        place.mkdir(parents=True)
        shift = rng.normal(size=(FRAMES, ATOMS, 3)) * 0.1
        np.save(place / "coord.npy", (side + shift).reshape(FRAMES, -1))
        np.save(place / "force.npy", (-4.0 * shift).reshape(FRAMES, -1))
        np.save(place / "box.npy", np.tile(np.eye(3).reshape(1, 9) * 10.0, (FRAMES, 1)))
        np.save(place / "energy.npy", 2.0 * (shift**2).sum((1, 2)))


@lru_cache(maxsize=64)
def mapped(path):
    return np.load(path, mmap_mode="r")


class System(Dataset):
    """The frames of all sets of a system; an item is one frame."""

    keys = ("coord", "force", "box", "energy")

    def __init__(self, folder):
        self.sets = sorted(folder.glob("set.*"))
        counts = [mapped(place / "energy.npy").shape[0] for place in self.sets]
        self.ends = np.cumsum(counts)

    def __len__(self):
        return int(self.ends[-1])

    def values(self, place, key):
        path = place / f"{key}.npy"
        return np.load(path) if VARIANT == "a" else mapped(path)

    def __getitem__(self, i):
        number = int(np.searchsorted(self.ends, i, side="right"))
        row = i - (int(self.ends[number - 1]) if number else 0)
        frame = {key: self.values(self.sets[number], key)[row] for key in self.keys}
        frame["coord"] = frame["coord"].reshape(ATOMS, 3)
        frame["force"] = frame["force"].reshape(ATOMS, 3)
        return {key: np.array(value, dtype=np.float32) for key, value in frame.items()}


class Potential(nn.Module):
    """An energy of all pairs of atoms by their distances, screened, with a fitting net."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centres", torch.linspace(1.0, 7.0, 16))
        self.embed = nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.fit = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.register_buffer("others", ~torch.eye(ATOMS, dtype=torch.bool))

    def forward(self, coord, box):
        apart = coord[:, :, None] - coord[:, None]
        edges = box.view(-1, 3, 3).diagonal(dim1=1, dim2=2)[:, None, None]
        apart = apart - edges * torch.round(apart / edges)
        distance = (apart.square().sum(-1) + 1e-6).sqrt()
        waves = torch.exp(-(distance[..., None] - self.centres).square())
        screen = torch.exp(-distance / 3.0) * self.others
        atoms = (self.embed(waves) * screen[..., None]).sum(2)
        return self.fit(atoms).sum((1, 2))


def endless(loader):
    while True:
        yield from loader


def train(folder):
    torch.manual_seed(4)
    system = System(folder)
    loader = DataLoader(system, batch_sampler=BatchSampler(RandomSampler(system), BATCH, True))
    batches = endless(loader)
    model = Potential()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == WARM_UP:
            begun = time.perf_counter()
        frames = next(batches)
        coord = frames["coord"].requires_grad_()
        energy = model(coord, frames["box"])
        force = -torch.autograd.grad(energy.sum(), coord, create_graph=True)[0]
        loss = (energy - frames["energy"]).square().mean() / ATOMS
        loss = loss + 10.0 * (force - frames["force"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = time.perf_counter() - begun
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * spent / max(STEPS - WARM_UP, 1):.2f} ms per step")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        simulate(Path(scratch) / "system")
        train(Path(scratch) / "system")
