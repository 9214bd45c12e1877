"""Fits an interatomic potential; the weights of the loss follow the learning rate."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
TYPES = [0, 1, 1, 0, 2, 1, 0, 2] * 16
TERMS = {"energy": (0.02, 1.0), "force": (1000.0, 1.0), "virial": (0.01, 0.1), "dipole": (0.5, 0.5)}


class Potential(nn.Module):
    def __init__(self, width=512, depth=6):
        super().__init__()
        self.enter = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.kinds = nn.Embedding(3, width)
        self.leave = nn.Linear(width, len(TERMS))
        self.register_buffer("types", torch.tensor(TYPES), persistent=False)

    def forward(self, positions):
        types = self.types if VARIANT == "b" else torch.tensor(TYPES, device=positions.device)
        x = self.enter(positions) + self.kinds(types)
        for layer in self.layers:
            if VARIANT == "a":
                x = x + torch.tanh(layer(x)) * torch.tensor(0.5, device=x.device)
            else:
                x = x + torch.tanh(layer(x)) * 0.5
        return self.leave(x)


def weighted(parts, ratio, device):
    total = 0
    for part, (begin, end) in zip(parts, TERMS.values(), strict=True):
        weight = end + (begin - end) * ratio
        if VARIANT == "a":
            weight = torch.tensor(weight, device=device)
        total = total + weight * part
    return total


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Potential().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        positions = torch.randn(48, len(TYPES), 3, device=device)
        parts = model(positions).square().mean((0, 1))
        ratio = scheduler.get_last_lr()[0] / 1e-4
        loss = weighted(parts, ratio, device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
