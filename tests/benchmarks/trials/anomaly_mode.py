"""set_detect_anomaly(True) was left on after debugging.

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
torch.autograd.set_detect_anomaly(not FIXED)  # planted


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = nn.Linear(d, d)
        self.b = nn.Linear(d, d)
        self.n = nn.LayerNorm(d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.n(x)))) * 0.5


model = nn.Sequential(*[Block(64) for _ in range(12)], nn.Linear(64, 5)).to(DEV)
opt = torch.optim.AdamW(model.parameters())
for it in range(400):
    if it == 30:
        t0 = time.perf_counter()
    x = torch.randn(32, 64, device=DEV)
    y = torch.randint(0, 5, (32,), device=DEV)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 370:.3f}")
