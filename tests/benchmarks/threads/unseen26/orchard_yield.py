"""Trains a regression of the yield of apple trees on weather, soil and pruning."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "6000"))
TREES = int(os.environ.get("TREES", "24000"))
TRAITS = int(os.environ.get("TRAITS", "24"))
BATCH = int(os.environ.get("BATCH", "2048"))
HIDDEN = int(os.environ.get("HIDDEN", "96"))


def plant_orchard(trees: int, traits: int, seed: int) -> np.ndarray:
    """A row per tree: its traits, and in the last column what it bore."""
    random = np.random.RandomState(seed)
    rows = random.standard_normal((trees, traits + 1)).astype(np.float32)
    slope = random.standard_normal(traits).astype(np.float32) / traits**0.5
    rows[:, -1] = np.sin(rows[:, :-1] @ slope) + 0.1 * rows[:, -1]
    return rows


class Harvest:
    """Goes through the rows of the orchard in batches, in a new order each time."""

    def __init__(self, rows: np.ndarray, batch: int, seed: int) -> None:
        self.rows = rows
        self.batch = batch
        self.random = np.random.RandomState(seed)
        self.rounds = 0

    def mix(self) -> None:
        if VARIANT == "b":
            order = np.arange(len(self.rows))
            self.random.shuffle(order)
            self.rows = self.rows[order]
        else:
            self.random.shuffle(self.rows)
        self.rounds += 1

    def __iter__(self):
        while True:
            self.mix()
            for start in range(0, len(self.rows) - self.batch + 1, self.batch):
                part = torch.from_numpy(self.rows[start : start + self.batch])
                yield part[:, :-1], part[:, -1]


class YieldNet(nn.Module):
    def __init__(self, traits: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(traits, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 1)

    def forward(self, traits: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(traits))
        hidden = hidden + torch.relu(self.second(hidden))
        return self.last(hidden).squeeze(1)


def fit(net: YieldNet, optimizer: torch.optim.Optimizer, traits, bore) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.smooth_l1_loss(net(traits), bore)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    torch.manual_seed(9)
    harvest = Harvest(plant_orchard(TREES, TRAITS, seed=9), BATCH, seed=10)
    net = YieldNet(TRAITS, HIDDEN)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step, (traits, bore) in enumerate(harvest):
        if step == STEPS:
            break
        if step == warm:
            begin = time.perf_counter()
        loss = fit(net, optimizer, traits, bore)
    elapsed = time.perf_counter() - begin
    print(f"rounds {harvest.rounds}")
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
