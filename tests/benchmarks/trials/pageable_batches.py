"""CNN on large uint8 images; batches come from ordinary (pageable) memory and are copied with .to(device).

Planted: transfer-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "transfer-bound"
NEEDS_GPU = True
FIXED = "--fixed" in sys.argv
DEV = "cuda"
pool = [torch.randint(0, 255, (128, 3, 512, 512), dtype=torch.uint8) for _ in range(4)]
if FIXED:
    pool = [p.pin_memory() for p in pool]
net = nn.Sequential(
    nn.Conv2d(3, 32, 7, 4),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, 2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
).to(DEV)
opt = torch.optim.SGD(net.parameters(), 0.01)
y = torch.randint(0, 10, (128,), device=DEV)
N = 150
for it in range(N):
    if it == 30:
        torch.cuda.synchronize()
        t0 = time.perf_counter()
    x = pool[it % 4].to(DEV, non_blocking=FIXED)  # planted
    loss = nn.functional.cross_entropy(net(x.float() / 255), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 30):.3f}")
