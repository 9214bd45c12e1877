"""Gradient accumulation over 8 micro-batches, input made with slow Python augmentation.

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import os
import random
import sys
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class Signals(Dataset):
    def __len__(self):
        return 12000

    def __getitem__(self, i):
        x = torch.randn(256)
        if not FIXED:
            for _ in range(12):  # planted
                s = random.randrange(200)
                x[s : s + 20] = x[s : s + 20].flip(0) * random.random()
        return x, i % 4


net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)).to(DEV)
opt = torch.optim.AdamW(net.parameters())
loader = DataLoader(Signals(), batch_size=16, shuffle=True)
K, n = 8, 0
opt.zero_grad()
for ep in range(2):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(net(x.to(DEV)), y.to(DEV)) / K
        loss.backward()
        if (i + 1) % K == 0:
            opt.step()
            opt.zero_grad()
            n += 1
            if n == 10:
                t0 = time.perf_counter()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 10):.3f}")
