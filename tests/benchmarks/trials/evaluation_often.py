"""Validation over a whole set after each 20 training steps.

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
train_ds = TensorDataset(torch.randn(12800, 64), torch.randint(0, 10, (12800,)))
val_ds = TensorDataset(torch.randn(6400, 64), torch.randint(0, 10, (6400,)))
train_dl = DataLoader(train_ds, batch_size=64, shuffle=True)
val_dl = DataLoader(val_ds, batch_size=64)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(
    DEV
)
opt = torch.optim.Adam(model.parameters())


@torch.no_grad()
def evaluate():
    model.eval()
    right = 0
    for x, y in val_dl:  # planted
        right += (model(x.to(DEV)).argmax(1).cpu() == y).sum().item()
    model.train()
    return right / len(val_ds)


n = 0
for epoch in range(3):
    for x, y in train_dl:
        if n == 40:
            t0 = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x.to(DEV)), y.to(DEV))
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        if n % (20 if not FIXED else 400) == 0:
            evaluate()  # planted
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 40):.3f}")
