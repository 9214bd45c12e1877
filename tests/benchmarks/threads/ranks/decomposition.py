"""Decomposes a network's weights into parts, over two ranks."""

import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 60))
ACCUMULATE, PARTS = 4, 96


class Parts(nn.Module):
    def __init__(self, sizes=(512, 1024, 1024, 1024, 512)):
        super().__init__()
        shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
        self.down = nn.ParameterList(nn.Parameter(torch.randn(a, PARTS) / a**0.5) for a, _ in shapes)
        self.up = nn.ParameterList(nn.Parameter(torch.randn(PARTS, b) / PARTS**0.5) for _, b in shapes)
        self.whole = nn.ParameterList(nn.Parameter(torch.randn(a, b) / a**0.5) for a, b in shapes)

    def forward(self, x):
        y = x
        for down, up, whole in zip(self.down, self.up, self.whole, strict=True):
            x, y = torch.tanh(x @ down @ up), torch.tanh(y @ whole)
        return (x - y).square().mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Parts())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(STEPS):
        if step == 10:
            start = time.perf_counter()
        for micro in range(ACCUMULATE):
            together = VARIANT == "a" or micro == ACCUMULATE - 1
            with contextlib.nullcontext() if together else model.no_sync():
                loss = model(torch.randn(8, 512)) / ACCUMULATE
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
