"""Masked language model, the loss picks positions with boolean masks per layer: nonzero() waits for the GPU each time.

Planted: sync-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "sync-bound"
ACCEPT = ("compute-bound",)
NEEDS_GPU = True
FIXED = "--fixed" in sys.argv
D = 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.LayerNorm(D)
        self.a = nn.Linear(D, 2 * D)
        self.b = nn.Linear(2 * D, D)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.n(x))))


blocks = nn.ModuleList(Block() for _ in range(24)).cuda()
heads = nn.ModuleList(nn.Linear(D, 100) for _ in range(24)).cuda()
net = nn.ModuleList([blocks, heads])
opt = torch.optim.AdamW(net.parameters(), fused=True)
N = 200
for it in range(N):
    if it == 30:
        torch.cuda.synchronize()
        t0 = time.perf_counter()
    x = torch.randn(32, 128, D, device="cuda")
    y = torch.randint(0, 100, (32, 128), device="cuda")
    mask = torch.rand(32, 128, device="cuda") < 0.15
    total = 0.0
    for b, h in zip(blocks, heads):
        x = b(x)
        if FIXED:
            target = torch.where(mask, y, -100)
            total = total + nn.functional.cross_entropy(
                h(x).flatten(0, 1), target.flatten(), ignore_index=-100
            )
        else:
            total = total + nn.functional.cross_entropy(h(x[mask]), y[mask])  # planted
    opt.zero_grad()
    total.backward()
    opt.step()
torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 30):.3f}")
