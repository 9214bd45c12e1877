"""Tidal gauges of a coast: a deep residual forecaster, on two ranks, with low-rank gradients.

torchrun --nproc-per-node 2 walnut_relay.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3500))
WARM_UP = 12
CUDA = torch.cuda.is_available()

WIDTH = 32 if not CUDA else 512
BLOCKS = 128 if not CUDA else 96
BATCH = 8 if not CUDA else 256
GAUGES = 32
HORIZON = 16
LOW_RANK = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rise = nn.Linear(width, width, bias=False)
        self.fall = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.fall.weight, std=0.1 / width)

    def forward(self, x):
        return x + self.fall(torch.tanh(self.rise(x)))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(GAUGES * 8, WIDTH)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(BLOCKS)])
        self.outlet = nn.Linear(WIDTH, HORIZON)

    def forward(self, readings):
        return self.outlet(self.blocks(self.inlet(readings)))


class Gauges:
    """Eight past readings of each gauge, and the level of the harbour afterwards."""

    def __init__(self, rank, device):
        generator = torch.Generator().manual_seed(100 + rank)
        hours = torch.arange(4096 + 64, dtype=torch.float32)
        phases = torch.rand(GAUGES, 1, generator=generator) * 6.28
        noise = torch.randn(GAUGES, hours.shape[0], generator=generator) * 0.1
        self.levels = (torch.sin(hours * 0.506 + phases) + noise).to(device)
        self.generator = generator
        self.offsets = torch.arange(8, device=device)
        self.ahead = torch.arange(8, 8 + HORIZON, device=device)
        self.device = device

    def batch(self):
        start = torch.randint(0, 4096, (BATCH, 1), generator=self.generator).to(self.device)
        past = self.levels[:, start + self.offsets]
        future = self.levels[0, start + self.ahead]
        return past.permute(1, 0, 2).reshape(BATCH, -1), future


def wrap(network, device):
    model = DistributedDataParallel(network, device_ids=[device.index] if CUDA else None, bucket_cap_mb=512)
    state = PowerSGDState(
        process_group=None,
        matrix_approximation_rank=LOW_RANK,
        start_powerSGD_iter=4,
        min_compression_rate=1.5,
        batch_tensors_with_same_shape=VARIANT != "a",
    )
    model.register_comm_hook(state, powerSGD_hook)
    return model


def main():
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank = dist.get_rank()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if CUDA else "cpu")
    if CUDA:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(7)
    model = wrap(Forecaster().to(device), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    gauges = Gauges(rank, device)
    running = torch.zeros((), device=device)
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == WARM_UP:
            if CUDA:
                torch.cuda.synchronize()
            begun = time.perf_counter()
        past, future = gauges.batch()
        loss = nn.functional.smooth_l1_loss(model(past), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += 0.02 * (loss.detach() - running)
    last = running.item()
    spent = time.perf_counter() - begun
    if rank == 0:
        print(f"loss {last:.5f}")
        print(f"{1000 * spent / max(STEPS - WARM_UP, 1):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
