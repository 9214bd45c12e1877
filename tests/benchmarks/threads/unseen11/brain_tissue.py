"""Labels the tissues in thick slabs of head scans and follows the overlap of each tissue."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 340))
HEADS, DEPTH, SIDE, BATCH = 24, 16, 80, 3
TISSUES = ["air", "skull", "fluid", "grey", "white"]


def make_heads():
    """Nested shells, each tissue with its own brightness."""
    g = torch.Generator().manual_seed(41)
    axes = [torch.linspace(-1, 1, n) for n in (DEPTH, SIDE, SIDE)]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    shift = 0.2 * torch.randn(HEADS, 3, 1, 1, 1, generator=g)
    radius = ((0.5 * z - shift[:, 0]) ** 2 + (y - shift[:, 1]) ** 2 + (x - shift[:, 2]) ** 2).sqrt()
    tissue = (radius < 0.85).long() + (radius < 0.75).long() + (radius < 0.68).long() + (radius < 0.45).long()
    bright = torch.tensor([0.0, 0.9, 0.2, 0.5, 0.7])
    scans = bright[tissue] + 0.15 * torch.randn(HEADS, DEPTH, SIDE, SIDE, generator=g)
    return scans[:, None], tissue


def most_likely(logits):
    if VARIANT == "a":
        return logits.argmax(1)
    return torch.from_numpy(np.argmax(logits.numpy(), 1))


class TissueNet(nn.Module):
    """Works on half the resolution, as the scans are smooth."""

    def __init__(self, width=8):
        super().__init__()
        self.into = nn.Conv3d(1, width, (2, 4, 4), stride=(2, 4, 4))
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Conv3d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv3d(2 * width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Conv3d(width, len(TISSUES), 1)

    def forward(self, scans):
        return self.head(self.body(self.into(scans)))


class Overlap:
    """Hits, misses and false alarms of each tissue since it was last read."""

    def __init__(self):
        self.counts = torch.zeros(len(TISSUES), len(TISSUES))

    def add(self, found, wanted):
        pairs = (wanted * len(TISSUES) + found).flatten()
        self.counts += torch.bincount(pairs, minlength=len(TISSUES) ** 2).view(len(TISSUES), -1)

    def read(self):
        dice = 2 * self.counts.diag() / (self.counts.sum(0) + self.counts.sum(1)).clamp(min=1)
        self.counts.zero_()
        return " ".join(f"{name} {value:.3f}" for name, value in zip(TISSUES, dice, strict=True))


def main():
    torch.manual_seed(41)
    scans, tissue = make_heads()
    coarse = tissue[:, ::2, ::4, ::4]
    model, overlap = TissueNet(), Overlap()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, HEADS, (BATCH,))
        logits = model(scans[rows])
        loss = F.cross_entropy(logits, coarse[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            full = F.interpolate(logits, size=(DEPTH, SIDE, SIDE), mode="nearest")
            overlap.add(most_likely(full), tissue[rows])
        if step % 50 == 49:
            print(step + 1, overlap.read())
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
