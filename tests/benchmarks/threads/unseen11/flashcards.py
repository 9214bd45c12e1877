"""Fits a model of forgetting to the reviews of flash cards."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
CARDS, REVIEWS, BATCH = 4_000, 24, 512


def make_reviews():
    """Days between the reviews of each card, and how well it was known: again, hard, well, easily."""
    g = torch.Generator().manual_seed(4)
    ease = torch.rand(CARDS, 1, generator=g)
    gaps = (0.3 + 0.5 * torch.rand(CARDS, REVIEWS, generator=g)).cumsum(1).exp().clamp(max=400) / 3
    strength = gaps.roll(1, 1) * (1 + 3 * ease)
    chance = (1 + gaps / (9 * strength.clamp(min=0.2))).reciprocal()
    known = torch.rand(CARDS, REVIEWS, generator=g) < chance
    grades = torch.where(known, 1 + (3 * torch.rand(CARDS, REVIEWS, generator=g)).long(), 0)
    return gaps, grades


class Forgetting(nn.Module):
    """Stability and difficulty of a card, moved by each review; all cards of a batch at once."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.tensor([0.4, 1.2, 3.0, 15.0]).log())
        self.hardness = nn.Parameter(torch.tensor([7.2, 6.4, 5.3, 3.5]))
        self.move = nn.Parameter(torch.tensor([1.4, 0.5, -0.1, -0.9]))
        self.grow = nn.Parameter(torch.tensor([1.5, 0.1, 1.0]))
        self.lapse = nn.Parameter(torch.tensor([1.9, 0.1, 0.3, 2.2]))
        self.bonus = nn.Parameter(torch.tensor([0.0, 0.2, 1.0, 2.6]))

    def forward(self, gaps, grades):
        stability = self.first[grades[:, 0]].exp()
        difficulty = self.hardness[grades[:, 0]]
        recalls = []
        for gap, grade in zip(gaps[:, 1:].unbind(1), grades[:, 1:].unbind(1), strict=True):
            recall = (1 + gap / (9 * stability)).reciprocal()
            recalls.append(recall)
            ease = 11 - difficulty
            more = (
                self.grow[0].exp()
                * ease
                * stability ** -self.grow[1]
                * (((1 - recall) * self.grow[2]).exp() - 1)
            )
            up = stability * (1 + more * self.bonus[grade])
            down = self.lapse[0] * difficulty ** -self.lapse[1] * ((stability + 1) ** self.lapse[2] - 1)
            down = torch.minimum(down * ((1 - recall) * self.lapse[3]).exp(), stability)
            stability = torch.where(grade > 0, up, down).clamp(0.05, 3650)
            difficulty = (difficulty + self.move[grade]).clamp(1, 10)
        return torch.stack(recalls, 1)


def main():
    torch.manual_seed(4)
    torch.set_num_threads(2 if VARIANT == "a" else 1)
    gaps, grades = make_reviews()
    model = Forgetting()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, CARDS, (BATCH,))
        recall = model(gaps[rows], grades[rows]).clamp(1e-4, 1 - 1e-4)
        loss = F.binary_cross_entropy(recall, (grades[rows, 1:] > 0).float())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
