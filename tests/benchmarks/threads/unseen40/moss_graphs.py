"""Solubility of compounds made by mosses: message passing over directed bonds."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
COMPOUNDS, BATCH = 600, 160
ATOM_DIM, BOND_DIM, HIDDEN, DEPTH = 40, 14, 64, 2
VALENCE = 4


class Compound:
    def __init__(self, rng):
        self.atoms = int(rng.integers(14, 30))
        self.atom_feats = rng.random((self.atoms, ATOM_DIM), dtype=np.float32)
        degree = np.zeros(self.atoms, int)
        edges = []
        for atom in range(1, self.atoms):
            free = np.flatnonzero(degree[:atom] < VALENCE - 1)
            other = int(rng.choice(free))
            degree[[atom, other]] += 1
            edges += [(other, atom), (atom, other)]
        self.edges = edges
        self.bond_feats = rng.random((len(edges), BOND_DIM), dtype=np.float32)
        self.target = float(self.atom_feats[:, :3].sum() - degree.max())


def attributes(compound):
    """Bond features with those of the atom it leaves, and the maps between atoms and bonds."""
    f_bonds = [
        compound.atom_feats[start].tolist() + feats.tolist()
        for (start, _), feats in zip(compound.edges, compound.bond_feats)
    ]
    a2b = [[] for _ in range(compound.atoms)]
    b2a, b2revb = [], []
    for bond, (start, end) in enumerate(compound.edges):
        a2b[end].append(bond)
        b2a.append(start)
        b2revb.append(bond + 1 if bond % 2 == 0 else bond - 1)
    a2b = [bonds + [-1] * (VALENCE - len(bonds)) for bonds in a2b]
    return (np.array(f_bonds, np.float32), np.array(a2b), np.array(b2a), np.array(b2revb))


def join(compounds, parts):
    atoms, bonds, a2b, b2a, b2revb, owner = [], [], [], [], [], []
    first_atom, first_bond = 0, 1
    for row, (compound, (f_bonds, to_bonds, to_atom, to_rev)) in enumerate(zip(compounds, parts)):
        atoms.append(compound.atom_feats)
        bonds.append(f_bonds)
        a2b.append(np.where(to_bonds < 0, 0, to_bonds + first_bond))
        b2a.append(to_atom + first_atom)
        b2revb.append(to_rev + first_bond)
        owner.append(np.full(compound.atoms, row))
        first_atom += compound.atoms
        first_bond += len(f_bonds)
    tensors = [torch.from_numpy(np.concatenate(x)) for x in (atoms, bonds, a2b, b2a, b2revb, owner)]
    target = torch.tensor([compound.target for compound in compounds])
    return tensors, target


class MossNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w_in = nn.Linear(ATOM_DIM + BOND_DIM, HIDDEN)
        self.w_hid = nn.Linear(HIDDEN, HIDDEN)
        self.w_out = nn.Linear(ATOM_DIM + HIDDEN, HIDDEN)
        self.read = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def gather(self, message, a2b):
        padded = F.pad(message, (0, 0, 1, 0))
        return padded.index_select(0, a2b.flatten()).view(*a2b.shape, HIDDEN).sum(1)

    def forward(self, atoms, bonds, a2b, b2a, b2revb, owner):
        start = self.w_in(bonds)
        message = F.relu(start)
        for _ in range(DEPTH):
            at_atoms = self.gather(message, a2b)
            back = message.index_select(0, b2revb - 1)
            message = F.relu(start + self.w_hid(at_atoms.index_select(0, b2a) - back))
        hidden = F.relu(self.w_out(torch.cat((atoms, self.gather(message, a2b)), dim=1)))
        pooled = hidden.new_zeros(int(owner[-1]) + 1, HIDDEN).index_add(0, owner, hidden)
        return self.read(pooled).squeeze(-1)


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(8)
    compounds = [Compound(rng) for _ in range(COMPOUNDS)]
    ready = None if VARIANT == "a" else [attributes(c) for c in compounds]
    model = MossNet()
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    warm = min(10, STEPS // 2)
    total, begin = 0.0, time.perf_counter()
    for step in range(STEPS):
        chosen = rng.integers(0, COMPOUNDS, BATCH)
        batch = [compounds[i] for i in chosen]
        parts = [attributes(c) for c in batch] if ready is None else [ready[i] for i in chosen]
        inputs, target = join(batch, parts)
        loss = F.smooth_l1_loss(model(*inputs), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if step + 1 == warm:
            begin = time.perf_counter()
    spent = time.perf_counter() - begin
    print(f"loss {total / STEPS:.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
