"""Compiled residual network whose layers look at their own activations: `if x.abs().max().item() > ...`.

Planted: graph-break-bound. --fixed: torch.where instead of the branch.
"""

import sys
import time

import torch
from torch import nn

TRUTH = "graph-break-bound"
FIXED = "--fixed" in sys.argv


class Guarded(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        y = torch.tanh(self.fc(x))
        if FIXED:
            y = torch.where(y.abs().max() > 10.0, y / 10.0, y)
        elif y.abs().max().item() > 10.0:
            y = y / 10.0
        return x + y


def fit(net, steps):
    step_fn = torch.compile(net)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = torch.randn(16, 32, device=DEVICE)
    for k in range(steps):
        if k == 40:
            start = time.perf_counter()
        loss = step_fn(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return (time.perf_counter() - start) * 1000 / (steps - 40), loss.item()


if __name__ == "__main__":
    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    ms, last = fit(nn.Sequential(*(Guarded(32) for _ in range(20))).to(DEVICE), 200)
    print("loss", last)
    print(f"step_ms={ms:.3f}")
