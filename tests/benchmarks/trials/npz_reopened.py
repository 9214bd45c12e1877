"""Every sample reopens an .npz archive from disk and reads one member.

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import tempfile
import time
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
path = os.path.join(tempfile.mkdtemp(), "data.npz")
np.savez(path, **{f"s{i}": np.random.randn(1000).astype(np.float32) for i in range(200)})


class Archive(Dataset):
    def __init__(self, path):
        self.path = path
        self.all = dict(np.load(path)) if FIXED else None

    def __len__(self):
        return 6400

    def __getitem__(self, i):
        store = self.all if FIXED else np.load(self.path)  # planted
        return torch.from_numpy(store[f"s{i % 200}"]), torch.tensor(float(i % 2))


net = nn.Sequential(
    nn.Unflatten(1, (1, 1000)),
    nn.Conv1d(1, 16, 9, 4),
    nn.ReLU(),
    nn.Conv1d(16, 32, 9, 4),
    nn.ReLU(),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(32, 1),
).to(DEV)
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
dl = DataLoader(Archive(path), batch_size=32, shuffle=True)
n = 0
for ep in range(2):
    for x, y in dl:
        if n == 20:
            t0 = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(net(x.to(DEV)).squeeze(1), y.to(DEV))
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 20):.3f}")
