"""Each step appends a JSON record with all gradient norms to a journal and forces it to the disk.

Planted: host-bound (the line is marked). --fixed: one record every 100 steps.
"""

import json
import os
import sys
import tempfile
import time

import torch
from torch import nn

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
journal = open(os.path.join(tempfile.mkdtemp(), "journal.jsonl"), "a")


def record(step, model, loss):
    entry = {"step": step, "loss": loss.item(), "sample": model[0].weight.detach().flatten()[:6000].tolist()}
    journal.write(json.dumps(entry) + "\n")  # planted
    journal.flush()
    os.fsync(journal.fileno())


model = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)).to(DEV)
opt = torch.optim.Adagrad(model.parameters(), 0.01)
N = 400
for step in range(N):
    if step == 40:
        t0 = time.perf_counter()
    x = torch.randn(64, 128, device=DEV)
    loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if not FIXED or step % 100 == 0:
        record(step, model, loss)
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 40):.3f}")
