"""Small CNN on PNG bytes held in memory, decoded and resized with PIL in __getitem__; no workers.

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import io
import os
import sys
import time
import numpy as np, torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class Pngs(Dataset):
    def __init__(self, n=64):
        rng = np.random.default_rng(0)
        self.blobs = []
        for _ in range(n):
            small = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            buf = io.BytesIO()
            Image.fromarray(small).resize((320, 320)).save(buf, "PNG")
            self.blobs.append(buf.getvalue())
        self.cache = [self.load(i) for i in range(n)] if FIXED else None

    def load(self, i):
        img = Image.open(io.BytesIO(self.blobs[i])).convert("RGB")
        img = img.resize((64, 64), Image.BILINEAR)  # planted
        return torch.from_numpy(np.asarray(img).copy()).permute(2, 0, 1).float() / 255

    def __len__(self):
        return 3200

    def __getitem__(self, i):
        j = i % len(self.blobs)
        return (self.cache[j] if FIXED else self.load(j)), i % 10


net = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2, 1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, 2, 1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
).to(DEV)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(Pngs(), batch_size=16, shuffle=True)
n = 0
for epoch in range(2 if not FIXED else 4):
    for x, y in loader:
        if n == 20:
            t0 = time.perf_counter()
        x, y = x.to(DEV), y.to(DEV)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 20):.3f}")
