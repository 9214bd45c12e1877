"""Distillation: the frozen teacher runs on each batch although its logits never change for a sample.

Planted: compute-bound, the teacher. --fixed: the teacher's logits computed once, before training.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = "compute-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def convnet(width, depth):
    layers = [nn.Conv2d(3, width, 3, 1, 1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


teacher = convnet(64, 5).to(DEV).eval()
for p in teacher.parameters():
    p.requires_grad_(False)
student = convnet(16, 2).to(DEV)
opt = torch.optim.SGD(student.parameters(), 0.05, momentum=0.9)
X = torch.randn(512, 3, 24, 24, device=DEV)
Y = torch.randint(0, 10, (512,), device=DEV)
if FIXED:
    with torch.no_grad():
        stored = torch.cat([teacher(x) for x in X.split(64)])
N = 90
for it in range(N):
    if it == 15:
        t0 = time.perf_counter()
    ids = torch.randint(0, 512, (32,), device=DEV)
    with torch.no_grad():
        soft = stored[ids] if FIXED else teacher(X[ids])  # planted
    logits = student(X[ids])
    loss = F.cross_entropy(logits, Y[ids]) + F.kl_div(
        F.log_softmax(logits / 2, 1), F.softmax(soft / 2, 1), reduction="batchmean"
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 15):.3f}")
