"""U-Net-like convolutions with torch.cuda.empty_cache() and gc.collect() at the end of every step.

Planted: allocator-thrashing (the line is marked). --fixed: the same training without it.
"""

import gc
import os
import sys
import time
import torch
from torch import nn

TRUTH = "allocator-thrashing"
ACCEPT = ("host-bound",)
NEEDS_GPU = True
FIXED = "--fixed" in sys.argv
net = nn.Sequential(
    *[
        nn.Sequential(nn.Conv2d(32 if i else 3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.SiLU())
        for i in range(10)
    ],
    nn.Conv2d(32, 3, 1),
).cuda()
opt = torch.optim.AdamW(net.parameters())
N = 150
for it in range(N):
    if it == 30:
        torch.cuda.synchronize()
        t0 = time.perf_counter()
    x = torch.randn(16, 3, 128, 128, device="cuda")
    loss = (net(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if not FIXED:
        torch.cuda.empty_cache()  # planted
torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 30):.3f}")
