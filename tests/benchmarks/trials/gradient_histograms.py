"""TensorBoard writer called with a histogram of each parameter and gradient after each step.

Planted: host-bound (the line is marked). --fixed: the histograms every 100 steps.
"""

import sys
import tempfile
import time

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class LossLogger:
    def __init__(self):
        self.writer = SummaryWriter(tempfile.mkdtemp())

    def log(self, model, loss, step):
        self.writer.add_scalar("loss", loss.item(), step)
        if FIXED and step % 100:
            return
        for name, p in model.named_parameters():
            self.writer.add_histogram(f"weights/{name}", p, step)
            self.writer.add_histogram(f"grads/{name}", p.grad, step)  # planted


net = nn.Sequential(
    nn.Linear(256, 512),
    nn.GELU(),
    nn.Linear(512, 512),
    nn.GELU(),
    nn.Linear(512, 256),
    nn.GELU(),
    nn.Linear(256, 10),
).to(DEV)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
logger = LossLogger()
X, Y = torch.randn(4096, 256, device=DEV), torch.randint(0, 10, (4096,), device=DEV)
step = 0
t0 = None
for epoch in range(3):
    order = torch.randperm(4096, device=DEV)
    for ids in order.split(64):
        loss = nn.functional.cross_entropy(net(X[ids]), Y[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.log(net, loss, step)
        step += 1
        if step == 15:
            t0 = time.perf_counter()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (step - 15):.3f}")
