"""Somebody profiled the loop last week and left the profiler around the whole training.

Planted: launch-bound, as recording slows each operator (the line is marked). --fixed: no profiler.
"""

import contextlib
import sys
import time

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

TRUTH = "launch-bound"
ACCEPT = ("host-bound", "undetermined")
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(30)]
net = nn.Sequential(*layers, nn.Linear(64, 3)).to(DEV)
opt = torch.optim.Adam(net.parameters())
prof = contextlib.nullcontext()
if not FIXED:
    prof = profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True)  # planted
N = 150
with prof:
    for it in range(N):
        if it == 20:
            t0 = time.perf_counter()
        x, y = torch.randn(32, 64, device=DEV), torch.randint(0, 3, (32,), device=DEV)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    took = time.perf_counter() - t0
print(f"step_ms={took * 1000 / (N - 20):.3f}")
