"""Eight loader workers for samples that lie ready in memory: shipping a batch costs more than making it.

Planted: input-bound (the line is marked). --fixed: no workers.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class Ready(Dataset):
    def __init__(self):
        self.x = torch.randn(40_000, 16)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i, 0]


def main():
    loader = DataLoader(Ready(), batch_size=8, shuffle=True, num_workers=0 if FIXED else 8)  # planted
    model = nn.Linear(16, 1).to(DEV)
    opt = torch.optim.SGD(model.parameters(), 0.01)
    for it, (x, y) in enumerate(loader):
        if it == 100:
            t0 = time.perf_counter()
        loss = nn.functional.mse_loss(model(x.to(DEV))[:, 0], y.to(DEV))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it == 2100:
            break
    print(f"step_ms={(time.perf_counter() - t0) * 1000 / 2000:.3f}")


if __name__ == "__main__":
    main()
