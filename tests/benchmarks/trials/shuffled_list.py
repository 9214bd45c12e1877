"""A hand-written batch sampler shuffles a list of 2M indices for every batch (random.sample over all).

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import os
import random
import sys
import time
import torch
from torch import nn

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
N = 300_000
X = torch.randn(N, 16)
Y = torch.randint(0, 3, (N,))
indices = list(range(N))


def get_batch(bs=256):
    if FIXED:
        idx = torch.randint(0, N, (bs,))
    else:
        random.shuffle(indices)  # planted
        idx = indices[:bs]
    return X[idx].to(DEV), Y[idx].to(DEV)


net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3)).to(DEV)
opt = torch.optim.Adam(net.parameters())
M = 60 if not FIXED else 400
for it in range(M):
    if it == 10:
        t0 = time.perf_counter()
    x, y = get_batch()
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (M - 10):.3f}")
