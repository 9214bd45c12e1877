"""Training beside a large Python object graph, with gc.collect() after every step "to save memory".

Planted: host-bound (the garbage collector). --fixed: the call removed.
"""

import gc
import sys
import time

import torch
import torch.nn as nn

TRUTH = "host-bound"

vocabulary = {f"word{i}": {"id": i, "forms": [f"{i}a", f"{i}b"]} for i in range(60_000)}
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
x = torch.randn(64, 128, device=device)
history = []
start = 0.0
for epoch in range(12):
    for batch in range(10):
        if epoch == 2 and batch == 0:
            start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(x), x)
        loss.backward()
        optimizer.step()
        if "--fixed" not in sys.argv:
            gc.collect()
    history.append(loss.item())
print(history[-1], len(vocabulary))
print(f"step_ms={(time.perf_counter() - start) * 10:.3f}")
