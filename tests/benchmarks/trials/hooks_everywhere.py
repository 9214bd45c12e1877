"""Forward hooks on every module keep activation statistics (mean, std, max, histogram) each step.

Planted: launch-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "launch-bound"
ACCEPT = ("compute-bound", "host-bound")
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
stats = {}


def watch(name):
    def hook(module, inputs, output):
        o = output.detach()
        stats[name] = (
            o.mean().item(),
            o.std().item(),
            o.abs().max().item(),
            torch.histc(o.cpu(), 30).tolist(),
        )  # planted

    return hook


model = nn.Sequential(
    *[nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU()) for _ in range(15)],
    nn.Linear(128, 10),
).to(DEV)
if not FIXED:
    for name, m in model.named_modules():
        m.register_forward_hook(watch(name))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for it in range(300):
    if it == 30:
        t0 = time.perf_counter()
    x = torch.randn(64, 128, device=DEV)
    y = torch.randint(0, 10, (64,), device=DEV)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 270:.3f}")
