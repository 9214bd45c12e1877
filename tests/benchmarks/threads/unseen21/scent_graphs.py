"""Predicts how strong a molecule smells: attention between its atoms, biased by how far apart they are bonded."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
MOLECULES, ATOMS, KINDS, BATCH, FAR, HEADS = 200, 14, 9, 10, 6, 4


def make_molecules():
    """Trees of atoms with a ring here and there, and the number of bonds between any two atoms."""
    g = torch.Generator().manual_seed(29)
    kind = torch.randint(0, KINDS, (MOLECULES, ATOMS), generator=g)
    bonds = torch.zeros(MOLECULES, ATOMS, ATOMS)
    rows = torch.arange(MOLECULES)
    for atom in range(1, ATOMS):
        to = (torch.rand(MOLECULES, generator=g) * atom).long()
        bonds[rows, atom, to] = bonds[rows, to, atom] = 1
    steps = torch.full_like(bonds, FAR)
    reached = torch.eye(ATOMS).expand(MOLECULES, -1, -1)
    for length in range(FAR):
        steps = torch.where((reached > 0) & (steps == FAR), length, steps)
        reached = reached @ bonds
    strength = (kind == 3).float().sum(1) - (bonds.sum(1) > 2).float().sum(1) * 0.5
    strength = strength + ((steps == 2) & (kind[:, :, None] == kind[:, None])).float().sum((1, 2)) / 6
    return kind, steps.long(), strength


class Nearness(nn.Module):
    """What the number of bonds between two atoms adds to their attention."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(FAR + 1, HEADS))

    def forward(self, steps):
        if VARIANT == "a":
            molecules = []
            for molecule in steps.tolist():
                rows = [torch.stack([self.weight[bonds] for bonds in row]) for row in molecule]
                molecules.append(torch.stack(rows))
            bias = torch.stack(molecules)
        else:
            bias = self.weight[steps]
        return bias.permute(0, 3, 1, 2)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, bias):
        parts = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, attn_mask=bias)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mix(self.norm2(x))


class ScentNet(nn.Module):
    def __init__(self, width=256, layers=5):
        super().__init__()
        self.atom = nn.Embedding(KINDS, width)
        self.near = Nearness()
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.head = nn.Linear(width, 1)

    def forward(self, kind, steps):
        x, bias = self.atom(kind), self.near(steps)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x.mean(1))[:, 0]


def main():
    torch.manual_seed(29)
    kind, steps, strength = make_molecules()
    model = ScentNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, MOLECULES, (BATCH,))
        loss = F.mse_loss(model(kind[rows], steps[rows]), strength[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
