"""The network of PyTorch's MNIST example with a batch of 1024, on the CPU: its feature maps are mapped anew.

    bottleneck diagnose tests/benchmarks/cpu_allocator.py
    python tests/benchmarks/cpu_allocator.py      # per step: step_ms=... faults=... system_ms=... cpu_ms=...
    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 python tests/benchmarks/cpu_allocator.py

The layers, sizes and optimizer are those of pytorch/examples/mnist/main.py; images are random. A feature
map of 1024 x 64 x 24 x 24 is 151 MB: glibc maps blocks beyond 32 MB one by one, whatever its settings.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import nn
from torch.nn import functional as F

WARMUP = 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=1024)
    args = parser.parse_args()
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    images = torch.randn(args.batch_size, 1, 28, 28)
    labels = torch.randint(10, (args.batch_size,))
    for step in range(args.steps):
        if step == WARMUP:
            before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
    counted = args.steps - WARMUP
    after = resource.getrusage(resource.RUSAGE_SELF)
    step_ms = (time.perf_counter() - start) * 1e3 / counted
    faults = (after.ru_minflt - before.ru_minflt) / counted
    system_ms = (after.ru_stime - before.ru_stime) * 1e3 / counted
    cpu_ms = system_ms + (after.ru_utime - before.ru_utime) * 1e3 / counted
    print(f"step_ms={step_ms:.3f} faults={faults:.0f} system_ms={system_ms:.1f} cpu_ms={cpu_ms:.1f}")


if __name__ == "__main__":
    main()
