"""Fit a coarse-grained force field to frames of short peptides (one folder of .npy files per peptide)."""

import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "700"))
WARM = min(10, STEPS // 2)
PEPTIDES = 24
FRAMES = 250
BEADS = 14
KINDS = 22
WIDTH = 48
BATCH = 64


def write_peptides(folder):
    rng = np.random.default_rng(0)
    for k in range(PEPTIDES):
        pos = rng.normal(size=(FRAMES, BEADS, 3)).astype(np.float32) * 2.0
        force = -0.4 * pos + 0.05 * rng.normal(size=pos.shape).astype(np.float32)
        np.save(f"{folder}/coords_{k:03d}.npy", pos)
        np.save(f"{folder}/forces_{k:03d}.npy", force.astype(np.float32))
        np.save(f"{folder}/energy_{k:03d}.npy", (pos**2).sum((1, 2))[:, None].astype(np.float32))
        np.save(f"{folder}/embed_{k:03d}.npy", rng.integers(0, KINDS, BEADS).astype(np.int32))


class PeptideFrames(Dataset):
    FIELDS = ("coords", "embed", "energy", "forces")

    def __init__(self, folder, keep):
        self.files = {f: [f"{folder}/{f}_{k:03d}.npy" for k in range(PEPTIDES)] for f in self.FIELDS}
        self.index = [(k, i) for k in range(PEPTIDES) for i in range(FRAMES)]
        self.keep = keep
        if keep:
            self.stored = {
                f: [torch.from_numpy(self.read(name, f)) for name in self.files[f]] for f in self.FIELDS
            }

    def read(self, name, field):
        array = np.load(name)
        return array.astype(np.int64) if field == "embed" else array

    def __len__(self):
        return len(self.index)

    def __getitem__(self, idx):
        file, frame = self.index[idx]
        if self.keep:
            stored = self.stored
            return (
                stored["coords"][file][frame],
                stored["embed"][file],
                stored["energy"][file][frame],
                stored["forces"][file][frame],
            )
        coords = np.array(np.load(self.files["coords"][file], mmap_mode="r")[frame])
        embed = np.load(self.files["embed"][file]).astype(np.int64)
        energy = np.array(np.load(self.files["energy"][file], mmap_mode="r")[frame])
        forces = np.array(np.load(self.files["forces"][file], mmap_mode="r")[frame])
        return (
            torch.from_numpy(coords),
            torch.from_numpy(embed),
            torch.from_numpy(energy),
            torch.from_numpy(forces),
        )


class BeadNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(KINDS, WIDTH)
        self.register_buffer("centres", torch.linspace(0.0, 8.0, 24))
        self.filter = nn.Sequential(nn.Linear(24, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.update = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.energy = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def forward(self, pos, kind):
        pos = pos.requires_grad_(True)
        gap = pos[:, :, None] - pos[:, None]
        dist = (gap.square().sum(-1) + 1e-3).sqrt()
        weight = self.filter(torch.exp(-(dist[..., None] - self.centres).square()))
        h = self.kind(kind)
        h = h + self.update((weight * h[:, None]).sum(2))
        total = self.energy(h).sum(1)
        force = -torch.autograd.grad(total.sum(), pos, create_graph=True)[0]
        return total, force


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        write_peptides(folder)
        frames = PeptideFrames(folder, keep=VARIANT != "a")
        loader = DataLoader(frames, batch_size=BATCH, shuffle=True, drop_last=True)
        model = BeadNet()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        start = time.perf_counter()
        for step, (pos, kind, energy, force) in enumerate(endless(loader)):
            if step == STEPS:
                break
            if step == WARM:
                start = time.perf_counter()
            total, predicted = model(pos, kind)
            loss = 0.01 * nn.functional.mse_loss(total, energy) + nn.functional.mse_loss(predicted, force)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        spent = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{spent / (STEPS - WARM) * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
