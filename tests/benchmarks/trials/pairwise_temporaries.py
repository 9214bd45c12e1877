"""Contrastive loss by broadcasting: [n, n, d] differences as one 39 MB temporary after another.

Planted: allocator-thrashing without a GPU (each temporary is mapped, faulted in and unmapped).
--fixed: the same sums in blocks that fit the heap. On a GPU: compute-bound (memory-bound kernels).
"""

import argparse
import time

import torch

GPU = torch.cuda.is_available()
TRUTH = "compute-bound" if GPU else "allocator-thrashing"

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
options = parser.parse_args()
dev = "cuda" if GPU else "cpu"
n, d = 640, 24
rows = 64 if options.fixed else n

net = torch.nn.Linear(64, d).to(dev)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
points = torch.randn(n, 64, device=dev)


def pairwise(z):
    total = 0.0
    for i in range(0, n, rows):
        diff = z[i : i + rows, None, :] - z[None, :, :]
        total = total + torch.relu(1 - diff.abs()).sum()
    return total / n**2


for step in range(50):
    if step == 15:
        t0 = time.perf_counter()
    loss = pairwise(net(points))
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"loss {float(loss):.4f}")
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 35:.3f}")
