"""The loss network and its optimizer param groups are rebuilt each step.

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to(DEV)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(12)])
        for p in self.parameters():
            p.requires_grad_(False)
            nn.init.orthogonal_(p) if p.ndim == 2 else None

    def forward(self, a, b):
        return (self.layers(a) - self.layers(b)).abs().mean()


fixed_loss = Perceptual().to(DEV)
for it in range(250):
    if it == 30:
        t0 = time.perf_counter()
    x = torch.randn(64, 64, device=DEV)
    criterion = fixed_loss if FIXED else Perceptual().to(DEV)  # planted
    loss = criterion(net(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 220:.3f}")
