"""Segmentation-like net; a confusion matrix and F1 are computed with numpy/Python after every step.

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import numpy as np, torch
from torch import nn

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


def f1_macro(pred, target, k):
    cm = np.zeros((k, k), dtype=np.int64)
    for p, t in zip(pred.ravel(), target.ravel()):  # planted
        cm[t, p] += 1
    tp = np.diag(cm)
    return float(np.mean(2 * tp / np.maximum(cm.sum(0) + cm.sum(1), 1)))


class Seg(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 5, 1),
        )

    def forward(self, x):
        return self.body(x)


def train():
    model = Seg().to(DEV)
    opt = torch.optim.Adam(model.parameters())
    scores = []
    for step in range(200):
        if step == 20:
            t0 = time.perf_counter()
        x = torch.randn(4, 3, 64, 64, device=DEV)
        y = torch.randint(0, 5, (4, 64, 64), device=DEV)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not FIXED or step % 100 == 0:
            scores.append(f1_macro(logits.argmax(1).cpu().numpy(), y.cpu().numpy(), 5))
    print(f"step_ms={(time.perf_counter() - t0) * 1000 / 180:.3f}")


train()
