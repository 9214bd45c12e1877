"""Recommends by the last items that a person has seen: a DLRM over a series of events."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
SERIES, TABLES, ITEMS, WIDTH, BATCH = 20, 4, 2000, 16, 96


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ITEMS, WIDTH, mode="sum") for _ in range(TABLES))
        self.bottom = mlp(8, 64, WIDTH)
        pairs = (TABLES + 1) * TABLES // 2
        self.top = mlp(WIDTH + pairs, 64, WIDTH)
        left, right = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        self.register_buffer("pairs", left * (TABLES + 1) + right)

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        found = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        T = torch.stack([x, *found], dim=1)
        crossed = (T @ T.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([x, crossed], dim=1))


class TBSM(nn.Module):
    def __init__(self):
        super().__init__()
        self.dlrm = DLRM()
        self.attend = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense, sparse):
        batch = len(dense)
        if VARIANT == "a":
            H = torch.zeros(batch, SERIES, WIDTH)
            for j in range(SERIES):
                z = self.dlrm(dense[:, j], sparse[:, j])
                H[:, j] = nn.functional.normalize(z, dim=1)
        else:
            z = self.dlrm(dense.flatten(0, 1), sparse.flatten(0, 1))
            H = nn.functional.normalize(z, dim=1).view(batch, SERIES, WIDTH)
        last = H[:, -1]
        weights = (H[:, :-1] @ self.attend(last)[:, :, None]).softmax(1)
        context = (weights * H[:, :-1]).sum(1)
        return self.out(torch.cat([context, last], 1)).squeeze(1)


def main():
    torch.manual_seed(0)
    model = TBSM()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        dense = torch.rand(BATCH, SERIES, 8)
        sparse = torch.randint(0, ITEMS, (BATCH, SERIES, TABLES, 3))
        bought = torch.randint(0, 2, (BATCH,)).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), bought)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
