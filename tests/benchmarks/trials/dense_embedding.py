"""Matrix factorisation over 400,000 items: the embedding's gradient is dense, Adam updates all rows.

Planted: compute-bound, in the optimizer. --fixed: sparse=True with SparseAdam.
"""

import sys
import time

import torch
from torch import nn

TRUTH = "compute-bound"
ACCEPT = ("allocator-thrashing",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
ITEMS = 400_000


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, 32, sparse=FIXED)  # planted
        self.users = nn.Embedding(20_000, 32, sparse=FIXED)

    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(-1)


model = Factors().to(DEV)
opt = torch.optim.SparseAdam(model.parameters()) if FIXED else torch.optim.Adam(model.parameters())
N = 60
for it in range(N):
    if it == 10:
        t0 = time.perf_counter()
    u = torch.randint(0, 20_000, (512,), device=DEV)
    i = torch.randint(0, ITEMS, (512,), device=DEV)
    loss = nn.functional.mse_loss(model(u, i), torch.rand(512, device=DEV))
    opt.zero_grad()
    loss.backward()
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 10):.3f}")
