"""Two ranks over gloo, started by mp.spawn; each rank's dataset waits for slow storage.

Planted: input-bound, on both ranks. --fixed: one loader worker per rank.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

TRUTH = "input-bound"
WORLD = 2


class Store(Dataset):
    def __len__(self):
        return 16 * 200

    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.full((64,), float(i % 7)), i % 4


def train(rank, port, fixed):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    data = Store()
    sampler = DistributedSampler(data, WORLD, rank)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=4 if fixed else 0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    stamps = []
    for x, y in loader:
        stamps.append(time.perf_counter())
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        print(f"step_ms={(stamps[-1] - stamps[20]) * 1000 / (len(stamps) - 21):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free_port = s.getsockname()[1]
    mp.spawn(train, (free_port, "--fixed" in sys.argv), nprocs=WORLD)
