"""Differentially private SGD: a backward pass per sample in a Python loop, then clipping and noise.

Planted: launch-bound (the line is marked). --fixed: torch.func.vmap over the samples.
"""

import sys
import time

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

TRUTH = "launch-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)).to(DEV)
opt = torch.optim.SGD(net.parameters(), 0.1)


def sample_loss(params, x, y):
    return nn.functional.cross_entropy(functional_call(net, params, (x[None],)), y[None])


def loop_gradients(x, y):
    sums = [torch.zeros_like(p) for p in net.parameters()]
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(net.parameters()))  # planted
        norm = torch.sqrt(sum((g**2).sum() for g in grads))
        scale = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        for s, g in zip(sums, grads):
            s += g * scale
    return sums


def vmap_gradients(x, y):
    params = {k: v.detach() for k, v in net.named_parameters()}
    grads = vmap(grad(sample_loss), in_dims=(None, 0, 0))(params, x, y)
    norm = torch.sqrt(sum((g.flatten(1) ** 2).sum(1) for g in grads.values()))
    scale = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
    return [torch.einsum("b,b...->...", scale, g) for g in grads.values()]


N = 120
for step in range(N):
    if step == 15:
        t0 = time.perf_counter()
    x, y = torch.randn(24, 32, device=DEV), torch.randint(0, 5, (24,), device=DEV)
    grads = vmap_gradients(x, y) if FIXED else loop_gradients(x, y)
    for p, g in zip(net.parameters(), grads):
        p.grad = (g + 0.5 * torch.randn_like(g)) / len(x)
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 15):.3f}")
