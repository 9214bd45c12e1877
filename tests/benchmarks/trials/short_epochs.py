"""Few-shot fine-tuning: epochs of eight batches, two workers that are started anew for each epoch.

Planted: input-bound, the loader's start (the line is marked). --fixed: persistent_workers=True.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = "input-bound"
ACCEPT = ("host-bound",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 5, (256,)))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, persistent_workers=FIXED)  # planted
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 5),
    ).to(DEV)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    steps, begun = 0, None
    for epoch in range(24):
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x.to(DEV)), y.to(DEV))
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
        if epoch == 1:
            begun, steps = time.perf_counter(), 0
    print(f"step_ms={(time.perf_counter() - begun) * 1000 / steps:.3f}")


if __name__ == "__main__":
    main()
