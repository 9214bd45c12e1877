"""Key points of relay runners: coordinates by a residual network from crops, with loader workers."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18, resnet50

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 4 if SMALL else 2200))
WARMUP = 2 if SMALL else 15
device = "cuda" if torch.cuda.is_available() else "cpu"

HEIGHT, WIDTH = (64, 48) if SMALL else (256, 192)
RUNNERS = 16 if SMALL else 1200
BATCH = 4 if SMALL else 160
WORKERS = 1 if SMALL else 8
POINTS = 17


class RunnerCrops(Dataset):
    def __init__(self, length):
        rng = np.random.default_rng(2)
        self.images = rng.integers(0, 256, (RUNNERS, 3, HEIGHT + 24, WIDTH + 24), dtype=np.uint8)
        self.points = rng.uniform(0.1, 0.9, (RUNNERS, POINTS, 2)).astype(np.float32)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        draw = random.Random(index)
        runner = index % RUNNERS
        top, left = draw.randint(0, 24), draw.randint(0, 24)
        image = torch.from_numpy(self.images[runner, :, top : top + HEIGHT, left : left + WIDTH])
        points = torch.from_numpy(self.points[runner]).clone()
        if draw.random() < 0.5:
            image = image.flip(-1)
            points[:, 0] = 1.0 - points[:, 0]
        return image.contiguous(), points


class Ahead:
    """Asks the iterator for the coming batch in a thread while the present one is used."""

    def __init__(self, iterator):
        self.iterator = iterator
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.future = self.executor.submit(next, self.iterator, None)

    def __iter__(self):
        return self

    def __next__(self):
        batch = self.future.result()
        if batch is None:
            self.executor.shutdown()
            raise StopIteration
        self.future = self.executor.submit(next, self.iterator, None)
        return batch


class PointNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = (resnet18 if SMALL else resnet50)(weights=None, num_classes=2 * POINTS)
        self.register_buffer("mean", torch.tensor([123.7, 116.3, 103.5]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([58.4, 57.1, 57.4]).view(1, 3, 1, 1))

    def forward(self, images):
        x = (images.float() - self.mean) / self.std
        x = x.contiguous(memory_format=torch.channels_last)
        return self.trunk(x).view(-1, POINTS, 2)


def main():
    torch.manual_seed(2)
    torch.backends.cudnn.benchmark = True
    model = PointNetwork().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, STEPS))
    loader = DataLoader(
        RunnerCrops(STEPS * BATCH),
        batch_size=BATCH,
        num_workers=WORKERS,
        pin_memory=device == "cuda",
        drop_last=True,
    )
    batches = iter(loader)
    if VARIANT != "a":
        batches = Ahead(batches)
    started, step = time.perf_counter(), 0
    for images, points in batches:
        images = images.to(device, non_blocking=True)
        points = points.to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(images)
        loss = F.smooth_l1_loss(out.float(), points, beta=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        if step == WARMUP:
            if device == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    print(f"loss {loss.item():.4f}")
    print(f"{elapsed / max(1, step - WARMUP) * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
