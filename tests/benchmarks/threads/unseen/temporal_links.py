"""Predicts links of a graph that changes over time, against several draws of negatives."""

import copy
import os
import time
from dataclasses import dataclass, field

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 160))
NODES, EVENTS, BATCH, NEAR, DRAWS, WIDTH = 3000, 64, 64, 10, 8, 64


@dataclass
class Batch:
    src: torch.Tensor
    dst: torch.Tensor
    when: torch.Tensor
    neg: torch.Tensor | None = None
    nbrs: dict = field(default_factory=dict)
    feats: list = field(default_factory=list)


class Stream:
    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.history = [torch.randint(0, NODES, (NEAR,), generator=self.g).tolist() for _ in range(NODES)]

    def __iter__(self):
        now = 0
        while True:
            src = torch.randint(0, NODES, (BATCH,), generator=self.g)
            dst = torch.randint(0, NODES, (BATCH,), generator=self.g)
            batch = Batch(src, dst, now + torch.arange(BATCH))
            for node in torch.cat([src, dst]).tolist():
                batch.nbrs[node] = [(near, now - age) for age, near in enumerate(self.history[node])]
            batch.feats = list(torch.randn(BATCH, 16, generator=self.g))
            yield batch
            for a, b in zip(src.tolist(), dst.tolist(), strict=True):
                self.history[a] = [b, *self.history[a][:-1]]
            now += BATCH


class LinkModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes = nn.Embedding(NODES, WIDTH)
        self.edge = nn.Linear(16, WIDTH)
        self.mix = nn.Sequential(nn.Linear(2 * WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))
        self.score = nn.Sequential(nn.Linear(2 * WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))

    def near(self, batch, ids):
        rows = [[n for n, _ in batch.nbrs.get(i, ())] or [i] * NEAR for i in ids.tolist()]
        return self.nodes(torch.tensor(rows)).mean(1)

    def forward(self, batch, other):
        left = self.mix(torch.cat([self.nodes(batch.src), self.near(batch, batch.src)], 1))
        left = left + self.edge(torch.stack(batch.feats))
        right = self.mix(torch.cat([self.nodes(other), self.near(batch, other)], 1))
        return self.score(torch.cat([left, right], 1)).squeeze(1)


def step_loss(model, batch):
    ones, zeros = torch.ones(BATCH), torch.zeros(BATCH)
    loss = nn.functional.binary_cross_entropy_with_logits(model(batch, batch.dst), ones)
    if VARIANT == "b":
        view = copy.deepcopy(batch)
    for _ in range(DRAWS):
        if VARIANT == "a":
            view = copy.deepcopy(batch)
        view.neg = torch.randint(0, NODES, (BATCH,))
        scores = model(view, view.neg)
        loss = loss + nn.functional.binary_cross_entropy_with_logits(scores, zeros) / DRAWS
    return loss


def main():
    torch.manual_seed(0)
    model = LinkModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, batch in enumerate(Stream()):
        if step == 5:
            start = time.perf_counter()
        if step == STEPS:
            break
        loss = step_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
