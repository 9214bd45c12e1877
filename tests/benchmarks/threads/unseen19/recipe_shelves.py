"""Puts recipes on the right shelf, from their words and from recipes that share ingredients."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 110))
RECIPES, WORDS, SHELVES, SHARED = 2_500, 500, 20, 6


def make_recipes():
    """Words and neighbours come from the same shelf more often than not."""
    g = torch.Generator().manual_seed(44)
    shelf = torch.randint(0, SHELVES, (RECIPES,), generator=g)
    likely = 0.01 + 0.06 * (torch.rand(SHELVES, WORDS, generator=g) < 0.1).float()
    words = (torch.rand(RECIPES, WORDS, generator=g) < likely[shelf]).float()
    by_shelf = [torch.nonzero(shelf == s)[:, 0] for s in range(SHELVES)]
    ends = []
    for recipe in range(RECIPES):
        kin = by_shelf[shelf[recipe]]
        near = kin[torch.randint(0, len(kin), (SHARED // 3,), generator=g)]
        far = torch.randint(0, RECIPES, (SHARED - len(near),), generator=g)
        ends.append(torch.cat([near, far, torch.tensor([recipe])]))
    rows = torch.repeat_interleave(torch.arange(RECIPES), SHARED + 1)
    columns = torch.cat(ends)
    source, target = torch.cat([rows, columns]), torch.cat([columns, rows])
    degree = torch.bincount(target, minlength=RECIPES).float()
    weight = 1 / (degree[source] * degree[target]).sqrt()
    return (source, target, weight[:, None]), words, shelf


def gather(links, x):
    """Sum of what the neighbours of each recipe hold."""
    source, target, weight = links
    return torch.zeros_like(x).index_add(0, target, weight * x[source])


class Share(nn.Module):
    """Each recipe takes over something of what its neighbours are."""

    def __init__(self, into, out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(into, out))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, links, x):
        if VARIANT == "a":
            return gather(links, x) @ self.weight + self.bias
        return gather(links, x @ self.weight) + self.bias


class ShelfNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.first, self.second = Share(WORDS, width), Share(width, SHELVES)
        self.alone = nn.Sequential(nn.Linear(WORDS, 384), nn.ReLU(), nn.Dropout(0.5), nn.Linear(384, SHELVES))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, links, words):
        x = F.dropout(words, 0.3, self.training)
        y = F.dropout(F.relu(self.norm(self.first(links, x))), 0.5, self.training)
        return self.second(links, y) + self.alone(x)


def main():
    torch.manual_seed(44)
    links, words, shelf = make_recipes()
    known = torch.rand(RECIPES) < 0.3
    model = ShelfNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    warm = min(5, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        scores = model(links, words)
        loss = F.cross_entropy(scores[known], shelf[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            right = (scores.argmax(1) == shelf)[~known].float().mean()
            print(f"{step + 1} loss {loss.item():.4f} right {right.item():.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
