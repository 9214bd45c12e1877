"""Ranks advertisements by sparse and dense features."""

import contextlib
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
TABLES, ROWS, WIDTH, DENSE, BATCH = 24, 1000, 16, 13, 64


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
        self.bot_l = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        self.top_l = nn.Sequential(nn.Linear(WIDTH * (TABLES + 1), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense, sparse):
        ly = [table(sparse[:, i]) for i, table in enumerate(self.emb_l)]
        return self.top_l(torch.cat([self.bot_l(dense), *ly], 1))


def main():
    torch.manual_seed(0)
    model = Ranker()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dense = torch.randn(6400, DENSE)
    sparse = torch.randint(0, ROWS, (6400, TABLES, 2))
    clicked = torch.rand(6400, 1).round()
    profiling = VARIANT != "b"
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(dense), (BATCH,))
        with torch.autograd.profiler.profile() if profiling else contextlib.nullcontext():
            score = model(dense[rows], sparse[rows])
            loss = nn.functional.binary_cross_entropy_with_logits(score, clicked[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
