"""Learns polarizabilities of small molecules; the systems lie in one archive."""

import io
import os
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
SYSTEMS, ATOMS, RADIAL, BATCH = 700, 24, 64, 8


def write_archive(path):
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(SYSTEMS):
            buffer = io.BytesIO()
            np.save(buffer, rng.standard_normal((ATOMS, 4)).astype(np.float32))
            archive.writestr(f"{i}/system.npy", buffer.getvalue())


class DiskDataset(Dataset):
    def __init__(self, path):
        self.path = path
        self.file = zipfile.ZipFile(path) if VARIANT == "b" else None
        with zipfile.ZipFile(path) as archive:
            self.count = len(archive.namelist())

    def __len__(self):
        return self.count

    def read(self, archive, index):
        return np.load(io.BytesIO(archive.read(f"{index}/system.npy")))

    def __getitem__(self, index):
        if self.file is not None:
            system = self.read(self.file, index)
        else:
            with zipfile.ZipFile(self.path) as archive:
                system = self.read(archive, index)
        system = torch.from_numpy(system)
        return system, system.square().sum(0)


class Model(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.centres = nn.Parameter(torch.linspace(0, 3, RADIAL), requires_grad=False)
        self.pair = nn.Sequential(nn.Linear(RADIAL, width), nn.SiLU(), nn.Linear(width, width))
        self.atom = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 4))

    def forward(self, systems):
        apart = (systems[:, :, None] - systems[:, None]).square().sum(-1).add(1e-6).sqrt()
        radial = torch.cos(apart[..., None] * self.centres) / (1 + apart[..., None])
        return self.atom(self.pair(radial).sum(2)).sum(1)


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.zip"
        write_archive(path)
        loader = DataLoader(DiskDataset(path), batch_size=BATCH, shuffle=True, drop_last=True)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        step = 0
        while step < STEPS:
            for systems, targets in loader:
                if step == 5:
                    start = time.perf_counter()
                loss = nn.functional.mse_loss(model(systems), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == STEPS:
                    break
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
