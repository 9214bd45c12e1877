"""Data come from numpy as float64, the model was made .double() to stop the error.

Planted: compute-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import numpy as np, torch
from torch import nn

TRUTH = "compute-bound"
ACCEPT = ("launch-bound",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.from_numpy(np.random.randn(4096, 512))
Y = torch.from_numpy(np.random.randn(4096, 1))
H = 1024 if DEV == "cpu" else 4096
model = nn.Sequential(nn.Linear(512, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, 1)).to(DEV)
if FIXED:
    X, Y = X.float(), Y.float()
else:
    model = model.double()  # planted
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for it in range(150):
    if it == 20:
        t0 = time.perf_counter()
    i = (it % 16) * 256
    loss = nn.functional.mse_loss(model(X[i : i + 256].to(DEV)), Y[i : i + 256].to(DEV))
    opt.zero_grad()
    loss.backward()
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 130:.3f}")
