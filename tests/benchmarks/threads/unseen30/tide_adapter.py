"""Fine-tunes small adapters on a frozen network that predicts tide heights from buoy readings."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "430"))
BATCH = int(os.environ.get("BATCH", "256"))
WIDTH = int(os.environ.get("WIDTH", "1024"))
LAYERS = int(os.environ.get("LAYERS", "3"))
FACTOR = int(os.environ.get("FACTOR", "32"))


class AdapterLinear(nn.Module):
    """A frozen linear layer with a trainable update made of two small factors."""

    def __init__(self, width, factor, alpha=1.0):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.factor = factor
        self.other = width // factor
        self.scale = alpha / factor
        self.left = nn.Parameter(torch.randn(factor, factor) * 0.1)
        self.right = nn.Parameter(torch.randn(self.other, self.other) * 0.01)

    def delta_weight(self):
        return torch.kron(self.left, self.right) * self.scale

    def delta_factors(self, x):
        rows = x.reshape(-1, self.factor, self.other)
        rows = F.linear(rows, self.right)
        rows = torch.matmul(self.left, rows)
        return rows.reshape(x.shape) * self.scale

    def forward(self, x):
        out = self.base(x)
        if VARIANT == "a":
            return out + F.linear(x, self.delta_weight())
        return out + self.delta_factors(x)


class TideNet(nn.Module):
    def __init__(self, width, layers, factor):
        super().__init__()
        self.stem = nn.Linear(24, width)
        self.stem.requires_grad_(False)
        self.blocks = nn.ModuleList(AdapterLinear(width, factor) for _ in range(layers))
        self.head = nn.Linear(width, 8)

    def forward(self, readings):
        x = torch.tanh(self.stem(readings))
        for block in self.blocks:
            x = x + F.gelu(block(x))
        return self.head(x)


def make_readings(count):
    readings = torch.randn(count, 24)
    mix = torch.randn(24, 8) / 5
    heights = torch.sin(readings @ mix) + 0.05 * torch.randn(count, 8)
    return readings, heights


def main():
    torch.manual_seed(11)
    readings, heights = make_readings(4096)
    model = TideNet(WIDTH, LAYERS, FACTOR)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3)
    picks = torch.randint(0, len(readings), (STEPS, BATCH))

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        x, y = readings[picks[step]], heights[picks[step]]
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
