"""200 small layers, AdamW(foreach=False).

Planted: launch-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "launch-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
experts = nn.ModuleList([nn.Linear(32, 32) for _ in range(150)]).to(DEV)
kw = {"fused": True} if FIXED else {"foreach": False}
opt = torch.optim.AdamW(experts.parameters(), lr=1e-3, **kw)
for it in range(300):
    if it == 30:
        t0 = time.perf_counter()
    x = torch.randn(16, 32, device=DEV)
    for m in experts:
        x = x + 0.1 * m(x)
    loss = x.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # planted
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 270:.3f}")
