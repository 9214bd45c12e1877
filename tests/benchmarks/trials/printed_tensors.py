"""Prints a weight summary (whole tensors through repr) every step.

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
log = open(os.devnull, "w")
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(DEV)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    if step == 30:
        t0 = time.perf_counter()
    x = torch.randn(128, 64, device=DEV)
    pred = model(x)
    loss = (pred.squeeze() - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if not FIXED:
        print(
            "step", step, "loss", loss, "pred", pred[:20].T, "grad", model[0].weight.grad[:8], file=log
        )  # planted
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 370:.3f}")
