"""A learning-rate lambda that recomputes a long schedule in Python at each scheduler.step().

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import math
import os
import sys
import time
import torch
from torch import nn

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


def schedule(step, total=20000, warm=1000):
    return [
        i / warm if i < warm else 0.5 * (1 + math.cos(math.pi * (i - warm) / (total - warm)))
        for i in range(total)
    ][step]  # planted


table = [schedule(0)] and [0.5] * 20000
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEV)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
sched = torch.optim.lr_scheduler.LambdaLR(opt, (lambda s: table[s]) if FIXED else schedule)
for it in range(400):
    if it == 30:
        t0 = time.perf_counter()
    x = torch.randn(128, 128, device=DEV)
    y = torch.randint(0, 10, (128,), device=DEV)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()  # planted
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 370:.3f}")
