"""Tabular regression: a TensorDataset of single rows through a DataLoader, a small MLP.

Planted: input-bound (collating 1024 rows one by one costs more than the network).
--fixed: slices of the tensors instead of a loader.
"""

import argparse
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

TRUTH = "input-bound"

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--epochs", type=int, default=4)
opts = parser.parse_args()

dev = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.randn(40 * 1024, 32)
y = X[:, :1] * 2 - X[:, 1:2]
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(dev)
opt = optim.Adam(model.parameters(), 1e-3)
loss_fn = nn.MSELoss()


def slices():
    order = torch.randperm(len(X))
    for i in range(0, len(X), 1024):
        pick = order[i : i + 1024]
        yield X[pick], y[pick]


loader = DataLoader(TensorDataset(X, y), batch_size=1024, shuffle=True)
best = float("inf")
for epoch in range(opts.epochs):
    t0, n, total = time.perf_counter(), 0, 0.0
    for xb, yb in slices() if opts.fixed else loader:
        xb, yb = xb.to(dev), yb.to(dev)
        loss = loss_fn(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        n += 1
    best = min(best, (time.perf_counter() - t0) / n)
    print(f"epoch {epoch}: mse {total / n:.4f}")
print(f"step_ms={best * 1000:.3f}")
