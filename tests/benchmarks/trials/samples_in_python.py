"""Python loop over the samples of a batch inside forward (pairwise ranking); vectorised in the fix.

Planted: launch-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "launch-bound"
ACCEPT = ("host-bound",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
enc = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).to(DEV)
opt = torch.optim.Adam(enc.parameters())


def contrastive(z, labels):
    losses = []
    for i in range(z.shape[0]):  # planted
        d = (z - z[i]).pow(2).sum(1)
        same = labels == labels[i]
        losses.append((d * same).sum() / same.sum() + torch.relu(1 - d).mul(~same).sum() / z.shape[0])
    return torch.stack(losses).mean()


def contrastive_fast(z, labels):
    d = (z[:, None] - z[None]).pow(2).sum(2)
    same = labels[:, None] == labels[None]
    return ((d * same).sum(1) / same.sum(1) + torch.relu(1 - d).mul(~same).sum(1) / z.shape[0]).mean()


for it in range(200):
    if it == 20:
        t0 = time.perf_counter()
    x = torch.randn(64, 32, device=DEV)
    y = torch.randint(0, 4, (64,), device=DEV)
    loss = (contrastive_fast if FIXED else contrastive)(enc(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 180:.3f}")
