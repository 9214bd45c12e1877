"""DDP on two gloo ranks, eight micro-batches per update, gradients summed over ranks after each of them.

Planted: communication-bound (the line is marked). --fixed: no_sync() but for the last micro-batch.
"""

import contextlib
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRUTH = "communication-bound"
WORLD, MICRO = 2, 8


def train(rank, port, fixed):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    net = nn.Sequential(
        nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16)
    )
    model = DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    begun = 0.0
    for it in range(45):
        if it == 8:
            begun = time.perf_counter()
        opt.zero_grad()
        for micro in range(MICRO):
            x, y = torch.randn(4, 512), torch.randint(0, 16, (4,))
            quiet = model.no_sync() if fixed and micro < MICRO - 1 else contextlib.nullcontext()
            with quiet:
                loss = nn.functional.cross_entropy(model(x), y) / MICRO
                loss.backward()  # planted
        opt.step()
    if rank == 0:
        print(f"step_ms={(time.perf_counter() - begun) * 1000 / 37:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free_port = s.getsockname()[1]
    mp.spawn(train, (free_port, "--fixed" in sys.argv), nprocs=WORLD)
