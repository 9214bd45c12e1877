"""Learns which rooms of a museum belong together, from the ways that visitors take through it."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 480))
PLACES, WINGS, WIDTH = 4_000, 40, 128
WALKS, LENGTH, NEAR, WRONG = 224, 12, 4, 5


class Museum:
    """Showcases in wings: from one to the next in the same wing, now and then into another."""

    def __init__(self):
        g = torch.Generator().manual_seed(17)
        wing = torch.randint(0, WINGS, (PLACES,), generator=g)
        order = wing.argsort()
        at = torch.empty(PLACES, dtype=torch.long)
        at[order] = torch.arange(PLACES)
        reach = torch.randint(-30, 31, (PLACES, 16), generator=g)
        self.ways = order[(at[:, None] + reach).clamp(0, PLACES - 1)]
        self.ways[:, 0] = torch.randint(0, PLACES, (PLACES,), generator=g)

    def walk(self):
        now = torch.randint(0, PLACES, (WALKS,))
        seen = [now]
        for _ in range(LENGTH - 1):
            now = self.ways[now, torch.randint(0, 16, (WALKS,))]
            seen.append(now)
        return torch.stack(seen, 1).unfold(1, NEAR, 1).reshape(-1, NEAR)


class Rooms(nn.Module):
    """A vector for each showcase; a small net bends them before they are compared."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(PLACES, WIDTH, sparse=VARIANT == "a")
        self.bend = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, first, others):
        x = self.bend(self.table(first))
        return (x[:, None] * self.table(others)).sum(-1) / WIDTH**0.5


def make_optimizers(model):
    kind = torch.optim.SparseAdam if VARIANT == "a" else torch.optim.Adam
    return [
        kind(list(model.table.parameters()), lr=0.01),
        torch.optim.Adam(model.bend.parameters(), lr=0.001),
    ]


def main():
    torch.manual_seed(17)
    museum, model = Museum(), Rooms()
    optimizers = make_optimizers(model)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        ways = museum.walk()
        right = model(ways[:, 0], ways[:, 1:])
        wrong = model(ways[:, 0], torch.randint(0, PLACES, (len(ways), WRONG)))
        loss = -F.logsigmoid(right).mean() - F.logsigmoid(-wrong).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
