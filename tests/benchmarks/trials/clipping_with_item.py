"""Deep narrow MLP; gradient clipping written as a loop with .item() per parameter.

Planted: launch-bound (the line is marked). --fixed: the same training without it.
"""

import math
import os
import sys
import time
import torch
from torch import nn

TRUTH = "launch-bound"
ACCEPT = ("compute-bound", "sync-bound")
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


def clip(params, limit):
    total = 0.0
    for p in params:
        total += p.grad.norm().item() ** 2  # planted
    total = math.sqrt(total)
    if total > limit:
        for p in params:
            p.grad.mul_(limit / total)
    return total


model = nn.Sequential(
    *[nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU()) for _ in range(40)], nn.Linear(128, 10)
).to(DEV)
params = list(model.parameters())
opt = torch.optim.AdamW(params, lr=1e-3, foreach=True)
N = 400
for i in range(N):
    if i == 30:
        if DEV == "cuda":
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    x = torch.randn(64, 128, device=DEV)
    y = torch.randint(0, 10, (64,), device=DEV)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    if FIXED:
        nn.utils.clip_grad_norm_(params, 1.0)
    else:
        clip(params, 1.0)
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 30):.3f}")
