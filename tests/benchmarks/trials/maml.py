"""Model-agnostic meta-learning on sinusoids: tasks one after the other, functional inner steps.

Planted: launch-bound (the line is marked). --fixed: torch.func.vmap over the tasks.
"""

import sys
import time

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

TRUTH = "launch-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)).to(DEV)
meta = torch.optim.Adam(net.parameters(), 1e-3)


def tasks(n=16, k=10):
    amp, phase = torch.rand(n, 1, 1) * 5, torch.rand(n, 1, 1) * 3
    x = torch.rand(n, 2 * k, 1) * 10 - 5
    y = amp * torch.sin(x + phase)
    return (t.to(DEV) for t in (x[:, :k], y[:, :k], x[:, k:], y[:, k:]))


def inner_loss(params, x, y):
    return nn.functional.mse_loss(functional_call(net, params, (x,)), y)


def adapt(params, xs, ys, xq, yq):
    for _ in range(3):
        grads = grad(inner_loss)(params, xs, ys)
        params = {k: p - 0.01 * grads[k] for k, p in params.items()}
    return inner_loss(params, xq, yq)


def adapt_by_hand(params, xs, ys, xq, yq):
    for _ in range(3):
        loss = inner_loss(params, xs, ys)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        params = {k: p - 0.01 * g for (k, p), g in zip(params.items(), grads)}
    return inner_loss(params, xq, yq)


N = 70
for it in range(N):
    if it == 10:
        t0 = time.perf_counter()
    params = dict(net.named_parameters())
    batch = list(tasks())
    if FIXED:
        loss = vmap(adapt, in_dims=(None, 0, 0, 0, 0))(params, *batch).mean()
    else:
        loss = torch.stack([adapt_by_hand(params, *task) for task in zip(*batch)]).mean()  # planted
    meta.zero_grad()
    loss.backward()
    meta.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 10):.3f}")
