"""Compiled residual net with a logging print(.item()) in each block: one graph break per block.

Planted: graph-break-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "graph-break-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
SINK = open(os.devnull, "w")


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = nn.Linear(d, d)
        self.n = nn.LayerNorm(d)

    def forward(self, x):
        y = torch.relu(self.a(self.n(x)))
        if not FIXED:
            print("act", y.abs().mean().item(), file=SINK)  # planted
        return x + y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(64) for _ in range(6)])
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.head(x)


net = torch.compile(Net().to(DEV))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for it in range(300):
    if it == 50:
        t0 = time.perf_counter()
    x = torch.randn(32, 64, device=DEV)
    y = torch.randint(0, 3, (32,), device=DEV)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 250:.3f}")
