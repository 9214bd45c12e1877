"""Trains a message passing network on molecules for their solubility.

Molecules are kept as lists of atoms and bonds; a data set gives each of them its features when it is
asked for, among them which atoms give and take hydrogen bonds, by a file of definitions.
"""

import os
import re
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3400))
MOLECULES = 3000
BATCH = 32
ELEMENTS = ("C", "N", "O", "S", "F", "Cl", "P", "Br")
FAMILIES = ("Donor", "Acceptor", "Aromatic", "Halogen")

TYPES = """
Carbon C
Nitrogen N
Oxygen O
Sulfur S
Phosphorus P
Halide F,Cl,Br
Hetero {Nitrogen},{Oxygen},{Sulfur},{Phosphorus}
Amine {Nitrogen};H1,H2
Ammonium {Nitrogen};H3
Hydroxyl {Oxygen};H1,H2
Thiol {Sulfur};H1,H2
Carbonyl {Oxygen};H0;D1
Ether {Oxygen};H0;D2,D3
Imine {Nitrogen};H0
Ring {Carbon},{Nitrogen},{Oxygen},{Sulfur};ar1
Chain {Carbon},{Hetero};!ar1
"""
KINDS = ("Amine Ammonium Hydroxyl Thiol", "Carbonyl Ether Imine Hydroxyl", "Ring", "Halide")


def write_definitions(path):
    """Writes the file of definitions: types of atoms first, then the features of each family."""
    lines = [f"AtomType {line}" for line in TYPES.strip().splitlines()]
    for family, kinds in zip(FAMILIES, KINDS):
        for kind in kinds.split():
            for degree in range(1, 5):
                lines.append(f"DefineFeature {family}.{kind}{degree} {{{kind}}};D{degree}")
                lines += [f"  Family {family}", "  Weights 1.0", "EndFeature"]
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


class Pattern:
    """What an atom has to be: clauses that all hold, each by one of its marks."""

    def __init__(self, text):
        self.clauses = []
        for clause in text.split(";"):
            marks = clause.split(",")
            wanted = frozenset(mark for mark in marks if mark[0] != "!")
            barred = frozenset(mark[1:] for mark in marks if mark[0] == "!")
            self.clauses.append((wanted, barred))

    def matches(self, marks):
        return not any(marks.isdisjoint(wanted) and barred <= marks for wanted, barred in self.clauses)


class FeatureFactory:
    """Finds the features that a file defines in the atoms of a molecule."""

    def __init__(self, path):
        types = {}
        self.features = []
        name = pattern = family = None
        with open(path) as file:
            for line in file:
                words = line.split(None, 2)
                if words[0] == "AtomType":
                    types[words[1]] = self.expand(words[2].strip(), types)
                elif words[0] == "DefineFeature":
                    name, pattern = words[1], Pattern(self.expand(words[2].strip(), types))
                elif words[0] == "Family":
                    family = words[1]
                elif words[0] == "EndFeature":
                    self.features.append((name, family, pattern))

    @staticmethod
    def expand(text, types):
        return re.sub(r"\{(\w+)\}", lambda match: types[match.group(1)], text)

    def features_of(self, atoms):
        found = []
        for number, atom in enumerate(atoms):
            marks = set(atom.split(";"))
            for _, family, pattern in self.features:
                if pattern.matches(marks):
                    found.append((number, family))
                    break
        return found


class AtomFeaturizer:
    """Makes the row of numbers of each atom of a molecule."""

    def __init__(self, path):
        self.path = path
        if VARIANT != "a":
            self.factory = FeatureFactory(path)

    def __call__(self, molecule):
        atoms, degrees, _ = molecule
        factory = FeatureFactory(self.path) if VARIANT == "a" else self.factory
        rows = np.zeros((len(atoms), len(ELEMENTS) + len(FAMILIES) + 1), dtype=np.float32)
        rows[np.arange(len(atoms)), [ELEMENTS.index(atom.split(";")[0]) for atom in atoms]] = 1
        for number, family in factory.features_of(atoms):
            rows[number, len(ELEMENTS) + FAMILIES.index(family)] = 1
        rows[:, -1] = degrees / 4
        return torch.from_numpy(rows)


def make_molecules(rng):
    """Makes random trees with a few rings: atoms as texts, degrees, and bonds both ways."""
    molecules = []
    for _ in range(MOLECULES):
        count = int(rng.integers(8, 25))
        parents = (rng.random(count - 1) * np.arange(1, count)).astype(np.int64)
        bonds = np.stack([parents, np.arange(1, count)])
        bonds = np.concatenate([bonds, bonds[::-1]], axis=1)
        degrees = np.minimum(np.bincount(bonds[0], minlength=count), 4)
        kinds = rng.choice(len(ELEMENTS), count, p=(0.6, 0.12, 0.14, 0.04, 0.03, 0.03, 0.02, 0.02))
        marks = zip(kinds, degrees, rng.integers(0, 2, count))
        atoms = [f"{ELEMENTS[kind]};H{max(0, 3 - degree)};D{degree};ar{ring}" for kind, degree, ring in marks]
        molecules.append((atoms, degrees.astype(np.float32), torch.from_numpy(bonds)))
    return molecules


class Solubility(Dataset):
    """Molecules with their features and targets."""

    def __init__(self, molecules, targets, featurizer):
        self.molecules = molecules
        self.targets = targets
        self.featurizer = featurizer

    def __len__(self):
        return len(self.molecules)

    def __getitem__(self, index):
        molecule = self.molecules[index]
        return self.featurizer(molecule), molecule[2], self.targets[index]


def collate(samples):
    """Joins molecules to one large graph."""
    sizes = torch.tensor([len(rows) for rows, _, _ in samples])
    starts = torch.cumsum(sizes, 0) - sizes
    bonds = torch.cat([bonds + start for (_, bonds, _), start in zip(samples, starts)], dim=1)
    owner = torch.repeat_interleave(torch.arange(len(samples)), sizes)
    return torch.cat([rows for rows, _, _ in samples]), bonds, owner, torch.stack([s[2] for s in samples])


class Network(nn.Module):
    """Passes messages along the bonds and reads the molecule from the sum of its atoms."""

    def __init__(self, width=192, rounds=4):
        super().__init__()
        self.embed = nn.Linear(len(ELEMENTS) + len(FAMILIES) + 1, width)
        self.message = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.update = nn.ModuleList(nn.GRUCell(width, width) for _ in range(rounds))
        self.read = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, atoms, bonds, owner, count):
        state = torch.relu(self.embed(atoms))
        for message, update in zip(self.message, self.update):
            sent = torch.relu(message(state)).index_select(0, bonds[0])
            state = update(torch.zeros_like(state).index_add(0, bonds[1], sent), state)
        return self.read(torch.zeros(count, state.shape[1]).index_add(0, owner, state) / 16).squeeze(1)


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    molecules = make_molecules(rng)
    targets = torch.tensor([0.1 * sum(a[0] in "NO" for a in m[0]) - 0.02 * len(m[0]) for m in molecules])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "base_features.fdef")
        write_definitions(path)
        data = Solubility(molecules, targets, AtomFeaturizer(path))
        shuffled = torch.Generator().manual_seed(1)
        loader = DataLoader(data, BATCH, True, drop_last=True, collate_fn=collate, generator=shuffled)
        network = Network()
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-4)
        warm = min(10, STEPS // 2)
        step = 0
        while step < STEPS:
            for atoms, bonds, owner, target in loader:
                if step == warm:
                    start = time.perf_counter()
                loss = nn.functional.mse_loss(network(atoms, bonds, owner, len(target)), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 200 == 0:
                    print(f"step {step} loss {loss.item():.4f}")
                if step == STEPS:
                    break
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
