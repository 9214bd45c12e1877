"""Crowns of trees in aerial pictures: a segmentation network on two ranks.

torchrun --nproc-per-node 2 linden_canopy.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1200))
WARM_UP = 8
CUDA = torch.cuda.is_available()

BATCH = 4 if not CUDA else 16
SIDE = 48 if not CUDA else 128
WIDTH = 12 if not CUDA else 64
DEPTH = 14
CLASSES = 5


class Totals(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sums):
        sums = sums.clone()
        dist.all_reduce(sums)
        return sums

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Normalise(nn.Module):
    """Batch normalisation of pictures; `pooled` says whose pictures make up the batch."""

    def __init__(self, channels, pooled):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))
        self.pooled = pooled

    def forward(self, x):
        count = x.numel() // x.shape[1]
        sums = torch.stack([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3))])
        if self.pooled:
            sums = Totals.apply(sums)
            count *= dist.get_world_size()
        mean = sums[0] / count
        var = sums[1] / count - mean * mean
        with torch.no_grad():
            self.mean.lerp_(mean, 0.1)
            self.var.lerp_(var, 0.1)
        scale = self.weight * torch.rsqrt(var + 1e-5)
        shift = self.bias - mean * scale
        return x * scale[None, :, None, None] + shift[None, :, None, None]


def layer(entering, leaving, pooled):
    return nn.Sequential(
        nn.Conv2d(entering, leaving, 3, padding=1, bias=False), Normalise(leaving, pooled), nn.ReLU()
    )


class Canopy(nn.Module):
    def __init__(self, pooled):
        super().__init__()
        self.stem = layer(3, WIDTH, pooled)
        self.trunk = nn.ModuleList([layer(WIDTH, WIDTH, pooled) for _ in range(DEPTH)])
        self.head = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, pictures):
        x = self.stem(pictures)
        for part in self.trunk:
            x = x + part(x)
        return self.head(x)


def pictures_of(generator, device):
    field = torch.rand(BATCH, 1, SIDE // 8, SIDE // 8, generator=generator)
    field = nn.functional.interpolate(field, size=(SIDE, SIDE), mode="bilinear")
    labels = (field[:, 0] * CLASSES).long().clamp_(0, CLASSES - 1)
    noise = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator)
    return (field + 0.2 * noise).to(device), labels.to(device)


def main():
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank = dist.get_rank()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if CUDA else "cpu")
    if CUDA:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(3)
    model = DistributedDataParallel(
        Canopy(pooled=VARIANT == "a").to(device),
        device_ids=[device.index] if CUDA else None,
        broadcast_buffers=False,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(50 + rank)
    shelf = [pictures_of(generator, device) for _ in range(24)]
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == WARM_UP:
            begun = time.perf_counter()
        pictures, labels = shelf[step % len(shelf)]
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    last = loss.item()
    spent = time.perf_counter() - begun
    if rank == 0:
        print(f"loss {last:.5f}")
        print(f"{1000 * spent / max(STEPS - WARM_UP, 1):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
