"""EMA of the weights by a Python loop over state_dict with deepcopy each step.

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import copy
import os
import sys
import time
import torch
from torch import nn

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*[nn.Sequential(nn.Linear(96, 96), nn.ReLU()) for _ in range(30)], nn.Linear(96, 4)).to(
    DEV
)
ema = copy.deepcopy(model)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def update_ema(decay=0.999):
    new = copy.deepcopy(model.state_dict())  # planted
    old = ema.state_dict()
    for k in new:
        old[k] = decay * old[k] + (1 - decay) * new[k]
    ema.load_state_dict(old)


def update_ema_fast(decay=0.999):
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)


for it in range(300):
    if it == 30:
        t0 = time.perf_counter()
    x = torch.randn(64, 96, device=DEV)
    y = torch.randint(0, 4, (64,), device=DEV)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    update_ema_fast() if FIXED else update_ema()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 270:.3f}")
