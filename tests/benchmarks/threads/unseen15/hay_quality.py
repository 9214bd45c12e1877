"""Grades hay by its laboratory values with an attentive network for tables."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
BALES, VALUES, GRADES, BATCH = 30_000, 40, 5, 256


class Bales(Dataset):
    def __init__(self, values, grades):
        self.values, self.grades = values, grades

    def __len__(self):
        return len(self.values)

    def __getitem__(self, n):
        return self.values[n], self.grades[n]


class BaleBatches:
    """The same rows in batches."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        rows = torch.randperm(len(self.dataset))
        for chosen in rows[: len(rows) // BATCH * BATCH].view(-1, BATCH):
            yield self.dataset[chosen]


def make_bales():
    g = torch.Generator().manual_seed(45)
    values = torch.randn(BALES, VALUES, generator=g)
    merit = torch.tanh(values[:, :12]).sum(1) + values[:, 3] * values[:, 17] + torch.randn(BALES, generator=g)
    return values, torch.bucketize(merit, merit.quantile(torch.tensor([0.2, 0.4, 0.6, 0.8])))


class Gated(nn.Module):
    def __init__(self, i, width):
        super().__init__()
        self.line, self.norm = nn.Linear(i, 2 * width), nn.BatchNorm1d(2 * width)

    def forward(self, x):
        return F.glu(self.norm(self.line(x)))


class TableNet(nn.Module):
    """Decides step by step which values to look at next."""

    def __init__(self, width=448, rounds=5):
        super().__init__()
        self.norm = nn.BatchNorm1d(VALUES)
        self.shared = Gated(VALUES, width)
        self.own = nn.ModuleList(
            nn.ModuleList(Gated(width, width) for _ in range(4)) for _ in range(rounds + 1)
        )
        self.look = nn.ModuleList(nn.Linear(width, VALUES) for _ in range(rounds))
        self.head = nn.Linear(width, GRADES)

    def transform(self, x, blocks):
        x = self.shared(x)
        for block in blocks:
            x = (x + block(x)) * 0.5**0.5
        return x

    def forward(self, values):
        values = self.norm(values)
        state, left, out = self.transform(values, self.own[0]), torch.ones_like(values), 0
        for look, blocks in zip(self.look, self.own[1:], strict=True):
            mask = (look(state) * left).softmax(1)
            left = left * (1.3 - mask)
            state = self.transform(mask * values, blocks)
            out = out + F.relu(state)
        return self.head(out)


def main():
    torch.manual_seed(45)
    dataset = Bales(*make_bales())
    if VARIANT == "a":
        loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    else:
        loader = BaleBatches(dataset)
    model = TableNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for values, grades in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.cross_entropy(model(values), grades)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
