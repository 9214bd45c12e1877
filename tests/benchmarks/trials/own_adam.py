"""A hundred small expert heads and an Adam written by hand, one parameter after the other.

Planted: launch-bound. --fixed: the heads as one batched product, torch's fused Adam.
"""

import argparse
import time

import torch
from torch import nn

TRUTH = "launch-bound"

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"


class MyAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["t"] += 1
                s["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                s["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                m, v = s["m"] / (1 - 0.9 ** s["t"]), s["v"] / (1 - 0.999 ** s["t"])
                p.sub_(group["lr"] * m / (v.sqrt() + 1e-8))


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(8, 8) for _ in range(100))

    def forward(self, x):
        return torch.stack([torch.tanh(head(x)) for head in self.heads])


class Batched(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(100, 8, 8) / 3)
        self.bias = nn.Parameter(torch.zeros(100, 1, 8))

    def forward(self, x):
        return torch.tanh(x @ self.weight + self.bias)


model = (Batched() if args.fixed else Loop()).to(device)
optimizer = torch.optim.Adam(model.parameters(), fused=True) if args.fixed else MyAdam(model.parameters())
x = torch.randn(4, 8, device=device)
for i in range(150):
    if i == 30:
        start = time.perf_counter()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
print(f"step_ms={(time.perf_counter() - start) * 1000 / 120:.3f}")
