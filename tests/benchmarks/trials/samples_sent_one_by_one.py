"""The Dataset returns CUDA tensors sample by sample: a tiny copy per sample and field.

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
ACCEPT = ("transfer-bound",)
NEEDS_GPU = True
FIXED = "--fixed" in sys.argv


class Rows(Dataset):
    def __init__(self):
        self.x = np.random.randn(20000, 64).astype(np.float32)
        self.y = np.random.randint(0, 5, 20000)
        if FIXED:
            self.x, self.y = torch.tensor(self.x, device="cuda"), torch.tensor(self.y, device="cuda")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.tensor(self.x[i], device="cuda"), torch.tensor(self.y[i], device="cuda")  # planted

    if FIXED:

        def __getitems__(self, idx):
            idx = torch.tensor(idx, device="cuda")
            return self.x[idx], self.y[idx]


def main():
    net = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 5)
    ).cuda()
    opt = torch.optim.AdamW(net.parameters(), fused=True)
    dl = DataLoader(Rows(), batch_size=128, shuffle=True, collate_fn=(lambda b: b) if FIXED else None)
    n = 0
    for ep in range(2):
        for x, y in dl:
            if n == 30:
                torch.cuda.synchronize()
                t0 = time.perf_counter()
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
    torch.cuda.synchronize()
    print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 30):.3f}")


main()
