"""Own recurrent cell stepped in Python over 100 time steps (tiny operators); the fix is nn.GRU.

Planted: launch-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "launch-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class Cell(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.x = nn.Linear(i, 3 * h)
        self.h = nn.Linear(h, 3 * h)
        self.size = h

    def forward(self, seq):
        h = seq.new_zeros(seq.shape[0], self.size)
        for t in range(seq.shape[1]):  # planted
            xr, xz, xn = self.x(seq[:, t]).chunk(3, 1)
            hr, hz, hn = self.h(h).chunk(3, 1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            h = (1 - z) * torch.tanh(xn + r * hn) + z * h
        return h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(16, 32, batch_first=True) if FIXED else Cell(16, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        h = self.rnn(x)[0][:, -1] if FIXED else self.rnn(x)
        return self.out(h)


net = Net().to(DEV)
opt = torch.optim.Adam(net.parameters())
for it in range(150):
    if it == 20:
        t0 = time.perf_counter()
    x = torch.randn(16, 100, 16, device=DEV)
    y = torch.randint(0, 2, (16,), device=DEV)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 130:.3f}")
