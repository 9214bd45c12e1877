"""Predicts tide levels from station readings with a deep residual MLP; the update is compiled."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 8192))
DIM = int(os.environ.get("DIM", 1024))
BLOCKS = int(os.environ.get("BLOCKS", 24))
FEATURES = int(os.environ.get("FEATURES", 96))
BACKEND = os.environ.get("BACKEND", "inductor")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = True
torch.manual_seed(0)


class Swell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin = nn.Linear(dim, dim)

    def forward(self, x):
        return x + 0.1 * F.silu(self.lin(x))


class TideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATURES, DIM)
        self.blocks = nn.ModuleList(Swell(DIM) for _ in range(BLOCKS))
        self.out = nn.Linear(DIM, 1)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(x).squeeze(-1)


def station_readings(n):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, FEATURES, generator=g)
    w = torch.randn(FEATURES, generator=g) / FEATURES**0.5
    return x, torch.sin(3 * (x @ w)) + 0.1 * torch.randn(n, generator=g)


x_all, y_all = station_readings(BATCH * 4)
x_all, y_all = x_all.to(device), y_all.to(device)
model = TideNet().to(device)
lr = torch.tensor(3e-4, device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
if VARIANT == "a":
    low, high = 0.85, 0.95
else:
    low, high = torch.tensor(0.85), torch.tensor(0.95)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=3e-4, total_steps=100_000, base_momentum=low, max_momentum=high
)


@torch.compile(backend=BACKEND)
def update():
    optimizer.step()


def train_step(step):
    at = step % 4 * BATCH
    x, y = x_all[at : at + BATCH], y_all[at : at + BATCH]
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    update()
    scheduler.step()
    return loss.detach()


warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    loss = train_step(step)
if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - t0
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
