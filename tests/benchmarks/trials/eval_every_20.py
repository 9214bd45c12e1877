"""Plain loop that evaluates on the whole validation set every 20 steps.

Planted: host-bound, the evaluation (the line is marked). --fixed: every 400 steps.
"""

import sys
import time

import torch
from torch import nn

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
EVERY = 400 if FIXED else 20


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 8)
        )

    def forward(self, x):
        return self.body(x)


def evaluate(net, x, y):
    net.eval()
    hits = 0
    with torch.no_grad():
        for a, b in zip(x.split(64), y.split(64)):
            hits += (net(a).argmax(1) == b).sum().item()  # planted
    net.train()
    return hits / len(x)


net = Net().to(DEV)
opt = torch.optim.Adam(net.parameters())
X, Y = torch.randn(8192, 128, device=DEV), torch.randint(0, 8, (8192,), device=DEV)
VX, VY = torch.randn(20000, 128, device=DEV), torch.randint(0, 8, (20000,), device=DEV)
N = 440
best = 0.0
for step in range(1, N + 1):
    if step == 41:
        t0 = time.perf_counter()
    ids = torch.randint(0, 8192, (64,), device=DEV)
    loss = nn.functional.cross_entropy(net(X[ids]), Y[ids])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % EVERY == 0:
        best = max(best, evaluate(net, VX, VY))
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 40):.3f}")
