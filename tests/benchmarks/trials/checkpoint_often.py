"""A 100M-parameter MLP-mixer-like net; torch.save every 10 steps.

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import tempfile
import time
import torch
from torch import nn

TRUTH = "host-bound"
NEEDS_GPU = True
FIXED = "--fixed" in sys.argv
folder = tempfile.mkdtemp()
net = nn.Sequential(
    *[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(10)], nn.Linear(2048, 10)
).cuda()
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
N = 90
for it in range(N):
    if it == 20:
        torch.cuda.synchronize()
        t0 = time.perf_counter()
    x = torch.randn(256, 2048, device="cuda")
    y = torch.randint(0, 10, (256,), device="cuda")
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % (10 if not FIXED else 1000) == 9:
        torch.save(net.state_dict(), os.path.join(folder, "last.pt"))  # planted
torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 20):.3f}")
