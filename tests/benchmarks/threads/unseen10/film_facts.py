"""Completes a graph of facts about films: who played in what, who made it and where.

Every entity is a point inside the unit ball and every relation a shift from head to tail.
"""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1900))
ENTITIES, RELATIONS, FACTS = 14951, 1345, 300_000
WIDTH, BATCH, CORRUPTED = 100, 512, 12


def make_facts():
    """Facts that hold in a hidden space, so that there is something to learn."""
    g = torch.Generator().manual_seed(15)
    places = F.normalize(torch.randn(ENTITIES, 8, generator=g), dim=1)
    shifts = 0.5 * torch.randn(RELATIONS, 8, generator=g)
    popularity = 1 / torch.arange(1, ENTITIES + 1).float() ** 0.7
    heads = torch.multinomial(popularity, FACTS, replacement=True, generator=g)
    relations = torch.randint(0, RELATIONS, (FACTS,), generator=g)
    candidates = torch.multinomial(popularity, FACTS * 8, replacement=True, generator=g).view(FACTS, 8)
    wanted = places[heads] + shifts[relations]
    gaps = (wanted[:, None] - places[candidates]).norm(dim=2)
    tails = candidates.gather(1, gaps.argmin(1, keepdim=True))[:, 0]
    return torch.stack([heads, relations, tails], 1)


class ShiftModel(nn.Module):
    def __init__(self):
        super().__init__()
        limit = 1.0 if VARIANT == "a" else None
        self.entity = nn.Embedding(ENTITIES, WIDTH, max_norm=limit)
        self.relation = nn.Embedding(RELATIONS, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
        nn.init.normal_(self.entity.weight, std=0.05)
        nn.init.normal_(self.relation.weight, std=0.05)

    def wish(self, heads, relations):
        """Where the tail should lie."""
        start = self.entity(heads)
        return start + self.mix(start + self.relation(relations))

    def distance(self, wish, tails):
        return (wish[:, None] - self.entity(tails)).square().sum(2).add(1e-9).sqrt()

    def stay_inside(self):
        """Pulls what has left the ball back to its surface."""
        if self.entity.max_norm is None:
            self.entity.weight.data.renorm_(2, 0, 1.0)


class Corruptor:
    """Draws tails that make a fact wrong, the popular ones more often."""

    def __init__(self, facts):
        counts = torch.bincount(facts[:, 2], minlength=ENTITIES).float().add(1).pow(0.75)
        self.share = counts.cumsum(0) / counts.sum()

    def draw(self, number):
        return torch.searchsorted(self.share, torch.rand(number, CORRUPTED)).clamp_(max=ENTITIES - 1)


def main():
    torch.manual_seed(15)
    facts = make_facts()
    corruptor = Corruptor(facts)
    model = ShiftModel()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        heads, relations, tails = facts[torch.randint(0, FACTS, (BATCH,))].unbind(1)
        wish = model.wish(heads, relations)
        right = model.distance(wish, tails[:, None])
        wrong = model.distance(wish, corruptor.draw(BATCH))
        loss = F.relu(1.0 + right - wrong).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.stay_inside()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
