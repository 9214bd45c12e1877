"""Ears of wheat on photographs: counting them with a density network, on two ranks.

torchrun --nproc-per-node 2 slate_harvest.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1200))
WARM_UP = 5
CUDA = torch.cuda.is_available()

BATCH = 8 if not CUDA else 32
SIDE = 64 if not CUDA else 256
WIDTH = 32 if not CUDA else 96


class Coordinator:
    """Keeps the ranks of the run together."""

    def __init__(self, device):
        self.device = device

    def meet(self):
        if VARIANT == "a":
            dist.barrier(device_ids=[self.device.index] if CUDA else None)


class Density(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1),
            nn.GroupNorm(8, WIDTH),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.GroupNorm(8, WIDTH),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(WIDTH, 2 * WIDTH, 3, padding=1),
            nn.GroupNorm(8, 2 * WIDTH),
            nn.ReLU(),
            nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=1),
            nn.GroupNorm(8, 2 * WIDTH),
            nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, 1, 1)
        )

    def forward(self, photographs):
        return self.decoder(self.encoder(photographs))


class Fields(torch.utils.data.Dataset):
    """Photographs with ears at known places, kept in memory."""

    def __init__(self, seed, count=96):
        generator = torch.Generator().manual_seed(seed)
        self.photographs = torch.rand(count, 3, SIDE, SIDE, generator=generator)
        self.density = torch.zeros(count, 1, SIDE // 2, SIDE // 2)
        places = torch.randint(0, SIDE // 2, (count, 40, 2), generator=generator)
        for i in range(count):
            self.density[i, 0, places[i, :, 0], places[i, :, 1]] = 1.0

    def __len__(self):
        return self.photographs.shape[0]

    def __getitem__(self, i):
        return self.photographs[i], self.density[i]


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank = dist.get_rank()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if CUDA else "cpu")
    if CUDA:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(5)
    fields = Fields(17, 96 if not CUDA else 512)
    sampler = torch.utils.data.DistributedSampler(fields, seed=1)
    loader = torch.utils.data.DataLoader(fields, BATCH, sampler=sampler, drop_last=True)
    batches = endless(loader, sampler)
    model = DistributedDataParallel(Density().to(device), device_ids=[device.index] if CUDA else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    coordinator = Coordinator(device)
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == WARM_UP:
            begun = time.perf_counter()
        photographs, density = next(batches)
        predicted = model(photographs.to(device))
        loss = nn.functional.mse_loss(predicted, density.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        coordinator.meet()
    last = loss.item()
    spent = time.perf_counter() - begun
    if rank == 0:
        print(f"loss {last:.5f}")
        print(f"{1000 * spent / max(STEPS - WARM_UP, 1):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
