"""Two causes of near equal cost: input made in Python, and metrics in Python.

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
ACCEPT = ("host-bound",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class D(Dataset):
    def __len__(self):
        return 20000

    def __getitem__(self, i):
        x = np.zeros(64, np.float32)
        if not FIXED:
            for j in range(200):
                x[j % 64] += (i * j) % 7  # planted
        return torch.from_numpy(x), i % 5


net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 5)).to(DEV)
opt = torch.optim.Adam(net.parameters())
confusion = [[0] * 5 for _ in range(5)]
n = 0
for x, y in DataLoader(D(), batch_size=64):
    if n == 20:
        t0 = time.perf_counter()
    out = net(x.to(DEV))
    loss = nn.functional.cross_entropy(out, y.to(DEV))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if not FIXED:
        pred = out.argmax(1).tolist()
        for r in range(25):  # planted
            for a, b in zip(pred, y.tolist()):
                confusion[a][b] += 1
    n += 1
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 20):.3f}")
