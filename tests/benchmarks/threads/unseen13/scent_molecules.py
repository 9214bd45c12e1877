"""Predicts the strength of a scent from the shape of its molecule: atoms and their distances."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
MOLECULES, KINDS, REACH, BATCH = 2_000, 5, 3.0, 32


def make_molecule(rng):
    """Chains of atoms about 1.5 apart; the strength follows kinds that lie close together."""
    size = int(rng.integers(12, 29))
    kinds = rng.integers(0, KINDS, size)
    places = np.zeros((size, 3))
    for atom in range(1, size):
        turn = rng.normal(size=3) + (1, 0, 0)
        places[atom] = places[rng.integers(max(atom - 3, 0), atom)] + 1.5 * turn / np.linalg.norm(turn)
    gap = np.linalg.norm(places[:, None] - places[None], axis=-1)
    return kinds, places, np.float32(np.exp(-gap)[kinds[:, None] == kinds].sum() / size - 1)


def pairs_by_cells(places):
    """Atoms sorted into cells as wide as the reach; each atom looks into its cell and the 26 around it."""
    low = places.min(0)
    counts = np.maximum(((places.max(0) - low) / REACH).astype(int) + 1, 1)
    cell = np.minimum(((places - low) / REACH).astype(int), counts - 1)
    number = (cell[:, 0] * counts[1] + cell[:, 1]) * counts[2] + cell[:, 2]
    order = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[order], np.arange(counts.prod() + 1))
    first, second = [], []
    for way in np.ndindex(3, 3, 3):
        other = cell + way - 1
        valid = np.flatnonzero(((other >= 0) & (other < counts)).all(1))
        there = (other[valid, 0] * counts[1] + other[valid, 1]) * counts[2] + other[valid, 2]
        sizes = starts[there + 1] - starts[there]
        i = np.repeat(valid, sizes)
        j = order[np.arange(sizes.sum()) + np.repeat(starts[there] - np.cumsum(sizes) + sizes, sizes)]
        near = (((places[i] - places[j]) ** 2).sum(1) < REACH**2) & (i != j)
        first.append(i[near])
        second.append(j[near])
    first, second = np.concatenate(first), np.concatenate(second)
    by_atom = np.lexsort((second, first))
    return first[by_atom], second[by_atom]


def pairs_of_all(places):
    gap = ((places[:, None] - places[None]) ** 2).sum(-1)
    np.fill_diagonal(gap, np.inf)
    return np.nonzero(gap < REACH**2)


def collate(molecules):
    wholes, shift = ([], [], [], [], []), 0
    for number, (kind, place, _) in enumerate(molecules):
        i, j = pairs_by_cells(place) if VARIANT == "a" else pairs_of_all(place)
        parts = kind, place, i + shift, j + shift, np.full(len(kind), number)
        for whole, part in zip(wholes, parts, strict=True):
            whole.append(part)
        shift += len(kind)
    return *(torch.from_numpy(np.concatenate(whole)) for whole in wholes), torch.tensor(
        [strength for *_, strength in molecules]
    )


class ScentNet(nn.Module):
    def __init__(self, width=128, waves=32, layers=3):
        super().__init__()
        self.width, self.kinds = width, nn.Embedding(KINDS, width)
        self.register_buffer("centres", torch.linspace(1, REACH, waves))
        self.filters = nn.ModuleList(self.pair(waves, width) for _ in range(layers))
        self.updates = nn.ModuleList(self.pair(width, width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    @staticmethod
    def pair(inputs, width):
        return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, kinds, places, first, second, owner, count):
        gap = (places.index_select(0, first) - places.index_select(0, second)).norm(dim=1)
        waves = torch.exp(-10 * (gap[:, None] - self.centres) ** 2)
        fade = 0.5 * (torch.cos(gap * torch.pi / REACH) + 1)
        x = self.kinds(kinds)
        for spread, update in zip(self.filters, self.updates, strict=True):
            message = x.index_select(0, second) * spread(waves) * fade[:, None]
            x = x + update(torch.zeros_like(x).index_add(0, first, message))
        return torch.zeros(count).index_add(0, owner, self.head(x)[:, 0])


def main():
    torch.manual_seed(21)
    rng = np.random.default_rng(21)
    molecules = [make_molecule(rng) for _ in range(MOLECULES)]
    loader = DataLoader(molecules, batch_size=BATCH, shuffle=True, collate_fn=collate, drop_last=True)
    model = ScentNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for kinds, places, first, second, owner, strength in loader:
            if step == warm:
                start = time.perf_counter()
            predicted = model(kinds, places.float(), first, second, owner, len(strength))
            loss = F.mse_loss(predicted, strength)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
