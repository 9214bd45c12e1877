"""An MLP on tensors that lie ready; loss and accuracy are read with .item() in every step.

Meant to be healthy: on a CPU nothing waits for a read.
"""

import os
import time
import torch
from torch import nn

TRUTH = "compute-bound"
ACCEPT = ("launch-bound",)
DEV = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.randn(20000, 784, device=DEV)
Y = torch.randint(0, 10, (20000,), device=DEV)
model = nn.Sequential(
    nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
).to(DEV)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
history = []
for it in range(300):
    if it == 30:
        t0 = time.perf_counter()
    i = (it * 256) % 19000
    x, y = X[i : i + 256], Y[i : i + 256]
    opt.zero_grad()
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    opt.step()
    history.append((loss.item(), (out.argmax(1) == y).float().mean().item()))
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 270:.3f}")
