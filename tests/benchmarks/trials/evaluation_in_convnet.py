"""ResNet-ish on the GPU, whole validation set after each 25 steps, batch after batch with .item().

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "host-bound"
NEEDS_GPU = True
FIXED = "--fixed" in sys.argv


def block(i, o, s):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, s, 1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(True),
        nn.Conv2d(o, o, 3, 1, 1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(True),
    )


net = nn.Sequential(
    block(3, 64, 1),
    block(64, 128, 2),
    block(128, 256, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(256, 10),
).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
X = torch.randn(8192, 3, 32, 32, device="cuda")
Y = torch.randint(0, 10, (8192,), device="cuda")


@torch.no_grad()
def validate():
    net.eval()
    right = 0
    for i in range(0, 8192, 128):
        right += (net(X[i : i + 128]).argmax(1) == Y[i : i + 128]).sum().item()  # planted
    net.train()
    return right / 8192


N = 260
for it in range(N):
    if it == 50:
        torch.cuda.synchronize()
        t0 = time.perf_counter()
    i = torch.randint(0, 8192, (256,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(net(X[i]), Y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (it + 1) % (25 if not FIXED else 1000) == 0:
        validate()  # planted
torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 50):.3f}")
