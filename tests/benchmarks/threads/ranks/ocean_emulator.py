"""Emulates an ocean model: many small per-level corrections."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 80))
LEVELS = 750


class Level(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x * self.gain + self.shift


class Emulator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.levels = nn.ModuleList(Level(width) for _ in range(LEVELS))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        for level in self.levels:
            x = level(x)
        return self.out(x)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    options = {"find_unused_parameters": True} if VARIANT == "a" else {}
    model = DistributedDataParallel(Emulator(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)
    torch.manual_seed(dist.get_rank())
    for step in range(STEPS):
        if step == 10:
            start = time.perf_counter()
        state = torch.randn(8, 32)
        loss = nn.functional.mse_loss(model(state), state.roll(1, 0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
