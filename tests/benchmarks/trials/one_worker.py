"""num_workers is set, but the decoding (zlib + numpy augment) needs far more than one worker.

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import zlib
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class Zipped(Dataset):
    def __init__(self):
        raw = np.random.default_rng(0).integers(0, 60, (3, 96, 96), dtype=np.uint8)
        self.blob = zlib.compress(raw.tobytes(), 6)
        self.ready = self.load() if FIXED else None

    def load(self):
        x = np.frombuffer(zlib.decompress(self.blob), np.uint8).reshape(3, 96, 96).astype(np.float32)
        x = (x - x.mean((1, 2), keepdims=True)) / x.std((1, 2), keepdims=True)
        for _ in range(4):
            x = x + np.roll(x, 1, axis=2) * 0.1
        return torch.from_numpy(np.ascontiguousarray(x[:, ::2, ::2]))

    def __len__(self):
        return 8000

    def __getitem__(self, i):
        return (self.ready if FIXED else self.load()), i % 10


def main():
    torch.manual_seed(0)
    dl = DataLoader(Zipped(), batch_size=16, num_workers=1, persistent_workers=True)  # planted
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).to(DEV)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for n, (x, y) in enumerate(dl):
        if n == 30:
            t0 = time.perf_counter()
        loss = nn.functional.cross_entropy(net(x.to(DEV)), y.to(DEV))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 29):.3f}")


if __name__ == "__main__":
    main()
