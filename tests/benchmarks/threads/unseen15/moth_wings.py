"""Names the species of moths by measures of their wings and keeps count of which is taken for which."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
MOTHS, SPECIES, MEASURES, BATCH = 20_000, 180, 48, 512


class Mixups:
    """How often each species was taken for each other one."""

    def __init__(self):
        self.table = torch.zeros(SPECIES, SPECIES)
        self.numbers = torch.arange(SPECIES)

    def update(self, guesses, species):
        if VARIANT == "a":
            hits = (guesses == self.numbers[:, None]) & (species == self.numbers[:, None, None])
            self.table += hits.sum(dim=2, dtype=torch.float32)
        else:
            pairs = torch.bincount(species * SPECIES + guesses, minlength=SPECIES * SPECIES)
            self.table += pairs.view(SPECIES, SPECIES)

    def share(self):
        return self.table.diagonal().sum() / self.table.sum()

    def worst(self):
        wrong = self.table - self.table.diagonal().diag()
        return divmod(int(wrong.argmax()), SPECIES)


def make_moths():
    """Measures around those of the species, some of which are alike."""
    g = torch.Generator().manual_seed(44)
    typical = torch.randn(SPECIES, MEASURES, generator=g)
    species = torch.randint(0, SPECIES, (MOTHS,), generator=g)
    return typical[species] + 1.2 * torch.randn(MOTHS, MEASURES, generator=g), species


class WingNet(nn.Module):
    def __init__(self, width=384, depth=3):
        super().__init__()
        self.first = nn.Linear(MEASURES, width)
        self.body = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.Dropout(0.1))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, SPECIES)

    def forward(self, x):
        x = self.first(x)
        for block in self.body:
            x = x + block(x)
        return self.head(x)


def main():
    torch.manual_seed(44)
    measures, species = make_moths()
    model, mixups = WingNet(), Mixups()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, MOTHS, (BATCH,))
        scores = model(measures[rows])
        loss = F.cross_entropy(scores, species[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mixups.update(scores.detach().argmax(1), species[rows])
    elapsed = time.perf_counter() - start
    one, other = mixups.worst()
    print(f"loss {loss.item():.4f}, {mixups.share():.3f} right, most often {one} as {other}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
