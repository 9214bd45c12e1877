"""Train a small continuous-filter network on the energies of small molecules."""

import os
import time
from typing import NamedTuple, Optional

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 7000))

MOLECULES = 800
BATCH = 28
CUTOFF = 5.0
WIDTH = 64
RADIAL = 24


class Batch(NamedTuple):
    """Molecules joined into one list of atoms."""

    numbers: torch.Tensor
    positions: torch.Tensor
    subsystem: torch.Tensor
    energy: torch.Tensor
    pair_indices: Optional[torch.Tensor]


class Pairs(NamedTuple):
    """Interacting atoms, their distances and displacements."""

    pair_indices: torch.Tensor
    d_ij: torch.Tensor
    r_ij: torch.Tensor


def pairs_of_molecule(atoms):
    """Ordered pairs of different atoms of one molecule, as an array of two rows."""
    i, j = np.divmod(np.arange(atoms * atoms), atoms)
    keep = i != j
    return np.stack([i[keep], j[keep]])


class MoleculeDataset(Dataset):
    """Random compact molecules with a smooth pairwise energy."""

    def __init__(self, molecules=MOLECULES, seed=0):
        rng = np.random.default_rng(seed)
        self.records = []
        for _ in range(molecules):
            atoms = int(rng.integers(9, 19))
            numbers = rng.choice([1, 6, 7, 8], size=atoms, p=[0.5, 0.3, 0.1, 0.1])
            positions = rng.normal(scale=1.6, size=(atoms, 3)).astype(np.float32)
            distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1) + 10 * np.eye(atoms)
            charge = np.sqrt(numbers)
            energy = 0.1 * float((charge[:, None] * charge[None] * np.exp(-distance)).sum())
            record = {
                "numbers": torch.from_numpy(numbers),
                "positions": torch.from_numpy(positions),
                "energy": torch.tensor(energy),
            }
            if VARIANT != "a":
                record["pair_list"] = torch.from_numpy(pairs_of_molecule(atoms))
            self.records.append(record)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


def collate_molecules(records):
    """Join the molecules; remember which atom belongs to which one."""
    counts = torch.tensor([len(record["numbers"]) for record in records])
    pair_indices = None
    if "pair_list" in records[0]:
        offsets = torch.cumsum(counts, dim=0) - counts
        shifted = [record["pair_list"] + offset for record, offset in zip(records, offsets)]
        pair_indices = torch.cat(shifted, dim=1)
    return Batch(
        torch.cat([record["numbers"] for record in records]),
        torch.cat([record["positions"] for record in records]),
        torch.repeat_interleave(torch.arange(len(records)), counts),
        torch.stack([record["energy"] for record in records]),
        pair_indices,
    )


class Neighborlist(nn.Module):
    """Pairs of atoms of the same molecule that are closer than the cutoff."""

    def __init__(self, cutoff):
        super().__init__()
        self.register_buffer("cutoff", torch.tensor(cutoff))

    def enumerate_all_pairs(self, subsystem):
        """All ordered pairs within the molecules; one atom at a time keeps the tensors small."""
        n = len(subsystem)
        i_final_pairs = torch.tensor([], dtype=torch.int64)
        j_final_pairs = torch.tensor([], dtype=torch.int64)
        for atom in range(n):
            i_indices = torch.repeat_interleave(torch.tensor(atom), repeats=n - 1)
            j_indices = torch.cat((torch.arange(atom), torch.arange(atom + 1, n)))
            same_molecule = subsystem[i_indices] == subsystem[j_indices]
            i_final_pairs = torch.cat((i_final_pairs, i_indices[same_molecule]), dim=0)
            j_final_pairs = torch.cat((j_final_pairs, j_indices[same_molecule]), dim=0)
        return torch.stack((i_final_pairs, j_final_pairs))

    def forward(self, positions, subsystem, pair_indices=None):
        if pair_indices is None:
            pair_indices = self.enumerate_all_pairs(subsystem)
        chosen = positions.index_select(0, pair_indices.view(-1)).view(2, -1, 3)
        r_ij = chosen[1] - chosen[0]
        d_ij = r_ij.norm(dim=1)
        close = d_ij <= self.cutoff
        return Pairs(pair_indices[:, close], d_ij[close], r_ij[close])


class Interaction(nn.Module):
    """Continuous-filter convolution over the pairs."""

    def __init__(self, width, radial):
        super().__init__()
        self.filters = nn.Sequential(nn.Linear(radial, width), nn.SiLU(), nn.Linear(width, width))
        self.inner = nn.Linear(width, width, bias=False)
        self.outer = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x, pairs, basis, fade):
        filters = self.filters(basis) * fade.unsqueeze(1)
        messages = self.inner(x).index_select(0, pairs[1]) * filters
        gathered = torch.zeros_like(x).index_add(0, pairs[0], messages)
        return x + self.outer(gathered)


class EnergyModel(nn.Module):
    """Sum of atomic energies from a few interactions."""

    def __init__(self, width=WIDTH, radial=RADIAL, depth=4):
        super().__init__()
        self.neighborlist = Neighborlist(CUTOFF)
        self.embedding = nn.Embedding(10, width)
        self.interactions = nn.ModuleList(Interaction(width, radial) for _ in range(depth))
        self.readout = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))
        self.register_buffer("centres", torch.linspace(0.0, CUTOFF, radial))

    def forward(self, batch):
        pairs = self.neighborlist(batch.positions, batch.subsystem, batch.pair_indices)
        basis = torch.exp(-4.0 * (pairs.d_ij.unsqueeze(1) - self.centres) ** 2)
        fade = 0.5 * (torch.cos(pairs.d_ij * torch.pi / CUTOFF) + 1.0)
        x = self.embedding(batch.numbers)
        for interaction in self.interactions:
            x = interaction(x, pairs.pair_indices, basis, fade)
        atomic = self.readout(x).squeeze(1)
        return torch.zeros_like(batch.energy).index_add(0, batch.subsystem, atomic)


@torch.no_grad()
def evaluate(model, loader):
    """Mean absolute error over the validation molecules."""
    errors = [(model(batch) - batch.energy).abs() for batch in loader]
    return torch.cat(errors).mean().item()


def main():
    torch.manual_seed(0)
    shuffle = torch.Generator().manual_seed(1)
    train_loader = DataLoader(
        MoleculeDataset(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=collate_molecules,
        generator=shuffle,
    )
    valid_loader = DataLoader(MoleculeDataset(60, seed=7), batch_size=BATCH, collate_fn=collate_molecules)
    model = EnergyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    warm = min(10, STEPS // 2)
    step = 0
    while step < STEPS:
        for batch in train_loader:
            if step == STEPS:
                break
            if step == warm:
                start = time.perf_counter()
            loss = F.mse_loss(model(batch), batch.energy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 300 == 0:
                print(f"step {step} loss {loss.item():.4f} valid {evaluate(model, valid_loader):.4f}")
        schedule.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
