"""A thread of pure Python prepares statistics all the time and takes the interpreter lock from the loop.

Planted: launch-bound, as each operator waits for the lock (the line is marked). --fixed: no thread.
"""

import sys
import threading
import time

import torch
from torch import nn

TRUTH = "launch-bound"
ACCEPT = ("host-bound", "undetermined")
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
stop = threading.Event()


def monitor():
    counts = {}
    while not stop.is_set():
        for i in range(1000):
            counts[i] = counts.get(i, 0) + i * i % 7  # planted


if not FIXED:
    threading.Thread(target=monitor, daemon=True).start()
net = nn.Sequential(*[nn.Sequential(nn.Linear(96, 96), nn.ReLU()) for _ in range(8)], nn.Linear(96, 4)).to(
    DEV
)
opt = torch.optim.Adam(net.parameters())
N = 120
for it in range(N):
    if it == 10:
        t0 = time.perf_counter()
    x, y = torch.randn(64, 96, device=DEV), torch.randint(0, 4, (64,), device=DEV)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 10):.3f}")
stop.set()
