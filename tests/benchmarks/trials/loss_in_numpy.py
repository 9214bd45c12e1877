"""The loss goes through numpy: weights from .detach().cpu().numpy() with a Python loop over samples.

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import numpy as np, torch
from torch import nn

TRUTH = "host-bound"
ACCEPT = ("launch-bound", "sync-bound")
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


def focal_weights(logits, y):
    p = torch.softmax(logits, 1).detach().cpu().numpy()
    w = np.zeros(len(p))
    for i in range(len(p)):  # planted
        w[i] = (1 - p[i, int(y[i])]) ** 2 + 0.01 * np.sort(p[i])[-2] + np.log1p(p[i]).sum() * 1e-3
    return torch.tensor(w, dtype=torch.float32, device=logits.device)


def focal_weights_fast(logits, y):
    p = torch.softmax(logits, 1).detach()
    return (
        (1 - p.gather(1, y[:, None])[:, 0]) ** 2
        + 0.01 * p.topk(2).values[:, 1]
        + torch.log1p(p).sum(1) * 1e-3
    )


model = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 20)).to(DEV)
opt = torch.optim.Adam(model.parameters())
X, Y = torch.randn(8192, 100, device=DEV), torch.randint(0, 20, (8192,), device=DEV)
for it in range(300):
    if it == 30:
        t0 = time.perf_counter()
    idx = torch.randint(0, 8192, (512,), device=DEV)
    x, y = X[idx], Y[idx]
    logits = model(x)
    w = focal_weights_fast(logits, y) if FIXED else focal_weights(logits, y)
    loss = (w * nn.functional.cross_entropy(logits, y, reduction="none")).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 270:.3f}")
