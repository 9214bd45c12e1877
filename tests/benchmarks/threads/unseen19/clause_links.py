"""Tells how two clauses of a contract bear on each other: amends, limits, defines and so on."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 140))
WORDS, LENGTH, LINKS, BATCH = 5_000, 24, 48, 256


def make_clauses(count=6_000):
    """Clauses about a topic; the link of a pair follows from its two topics."""
    g = torch.Generator().manual_seed(15)
    topics = torch.randint(0, 40, (count,), generator=g)
    favoured = torch.randint(0, WORDS, (40, 30), generator=g)
    picked = torch.randint(0, 30, (count, LENGTH), generator=g)
    noise = torch.randint(0, WORDS, (count, LENGTH), generator=g)
    about = torch.rand(count, LENGTH, generator=g) < 0.6
    clauses = torch.where(about, favoured[topics[:, None], picked], noise)
    table = torch.randint(0, LINKS, (40, 40), generator=g)
    return clauses, topics, table


class Pairing(nn.Module):
    """One form of the two sides for each kind of link."""

    def __init__(self, size, kinds):
        super().__init__()
        self.form = nn.Bilinear(size, size, kinds)

    def forward(self, left, right):
        if VARIANT == "a":
            return self.form(left, right)
        kinds, one, two = self.form.weight.shape
        mixed = left @ self.form.weight.permute(1, 0, 2).reshape(one, kinds * two)
        return (mixed.view(-1, kinds, two) * right[:, None]).sum(-1) + self.form.bias


class ClauseReader(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.left = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))
        self.right = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))
        self.pairing = Pairing(width, LINKS)

    def forward(self, clauses):
        seen, _ = self.read(self.words(clauses))
        seen = seen.amax(1)
        half = len(seen) // 2
        return self.pairing(self.left(seen[:half]), self.right(seen[half:]))


def main():
    torch.manual_seed(15)
    clauses, topics, table = make_clauses()
    model = ClauseReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(5, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        one, two = torch.randint(0, len(clauses), (2, BATCH))
        scores = model(clauses[torch.cat([one, two])])
        loss = F.cross_entropy(scores, table[topics[one], topics[two]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"{step + 1} loss {loss.item():.4f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
