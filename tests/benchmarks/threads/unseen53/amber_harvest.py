"""Train a crop classifier from a stream of field photographs, two ranks, shards of one batch each."""

import os
import time
import zlib

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 780))
GPU = torch.cuda.is_available()
BATCH, SIDE = (64, 128) if GPU else (16, 64)
CHANNELS = 128 if GPU else 24
SHARDS, CROPS = 32, 12
WARM = 5


def make_shards():
    """Each shard holds one batch of packed photographs and their labels."""
    rng = np.random.default_rng(4)
    shards = []
    for _ in range(SHARDS):
        shard = []
        for _ in range(BATCH):
            label = int(rng.integers(CROPS))
            photo = rng.integers(0, 40, (2 * SIDE, 2 * SIDE, 3)) + 12 * label
            shard.append((zlib.compress(photo.astype(np.uint8).tobytes(), 3), label))
        shards.append(shard)
    return shards


def unpack(packed):
    photo = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(2 * SIDE, 2 * SIDE, 3)
    photo = photo.reshape(SIDE, 2, SIDE, 2, 3).astype(np.float32).mean((1, 3))
    photo = (photo / 255.0 - 0.45) / 0.25
    return torch.from_numpy(photo.transpose(2, 0, 1).copy())


class Photographs(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        while True:
            for shard in self.shards:
                for packed, label in shard:
                    yield unpack(packed), label


class RankPart(IterableDataset):
    """What one rank sees of a stream: one batch out of every `world` batches."""

    def __init__(self, stream, rank, world):
        self.stream, self.rank, self.world = stream, rank, world

    def __iter__(self):
        round_ = []
        for item in self.stream:
            round_.append(item)
            if len(round_) == BATCH * self.world:
                yield from round_[self.rank * BATCH : (self.rank + 1) * BATCH]
                round_ = []


def classifier():
    c = CHANNELS
    return nn.Sequential(
        nn.Conv2d(3, c, 3, 2, 1),
        nn.GroupNorm(4, c),
        nn.ReLU(),
        nn.Conv2d(c, 2 * c, 3, 1, 1),
        nn.GroupNorm(4, 2 * c),
        nn.ReLU(),
        nn.Conv2d(2 * c, 2 * c, 3, 2, 1),
        nn.GroupNorm(4, 2 * c),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * c, CROPS),
    )


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if GPU else "cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(13)
    shards = make_shards()
    if VARIANT == "a":
        part = RankPart(Photographs(shards), rank, world)
    else:
        part = Photographs(shards[rank::world])
    batches = iter(DataLoader(part, batch_size=BATCH, pin_memory=GPU))
    model = DDP(classifier().to(device), device_ids=[device.index] if GPU else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    start, loss = time.perf_counter(), None
    for step in range(STEPS):
        if step == WARM:
            if GPU:
                torch.cuda.synchronize()
            start = time.perf_counter()
        photos, labels = next(batches)
        photos, labels = photos.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(photos), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if GPU:
        torch.cuda.synchronize()
    spent = time.perf_counter() - start
    if rank == 0:
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * spent / (STEPS - WARM):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
