"""Contrastive pretraining of a tissue encoder: two augmented views of each tile, NT-Xent on top."""

import os
import random
import time

import numpy as np
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 4 if SMALL else 900))
WARMUP = 2 if SMALL else 10
device = "cuda" if torch.cuda.is_available() else "cpu"

SIDE = 64 if SMALL else 256
TILES = 32 if SMALL else 1500
BATCH = 4 if SMALL else 64
WORKERS = 1 if SMALL else 8
KERNEL = int(0.1 * SIDE) // 2 * 2 + 1


def gaussian_line(size, sigma):
    half = (size - 1) * 0.5
    x = torch.linspace(-half, half, size)
    line = torch.exp(-0.5 * (x / sigma).pow(2))
    return line / line.sum()


class SoftFocus:
    """Gaussian filter of a float image (3, H, W), the width drawn anew for each call."""

    def __init__(self, size, sigma=(0.1, 2.0), p=0.5):
        self.size, self.sigma, self.p = size, sigma, p

    def __call__(self, image):
        if random.random() >= self.p:
            return image
        line = gaussian_line(self.size, random.uniform(*self.sigma))
        channels, k = image.shape[0], self.size
        padded = F.pad(image[None], [k // 2] * 4, mode="reflect")
        if VARIANT == "a":
            weight = torch.mm(line[:, None], line[None, :]).expand(channels, 1, k, k)
            return F.conv2d(padded, weight, groups=channels)[0]
        rows = line.view(1, 1, 1, k).expand(channels, 1, 1, k)
        columns = line.view(1, 1, k, 1).expand(channels, 1, k, 1)
        return F.conv2d(F.conv2d(padded, rows, groups=channels), columns, groups=channels)[0]


class StainJitter:
    def __call__(self, image):
        gain = torch.empty(3, 1, 1).uniform_(0.8, 1.2)
        shift = torch.empty(3, 1, 1).uniform_(-0.1, 0.1)
        return image.mul(gain).add_(shift).clamp_(0.0, 1.0)


class TwoViews(Dataset):
    def __init__(self, length):
        grid = np.random.default_rng(0)
        self.tiles = grid.integers(0, 256, (TILES, 3, SIDE + 32, SIDE + 32), dtype=np.uint8)
        self.length = length
        self.jitter = StainJitter()
        self.focus = (SoftFocus(KERNEL, p=1.0), SoftFocus(KERNEL, p=0.1))

    def __len__(self):
        return self.length

    def view(self, tile, focus):
        top, left = random.randint(0, 32), random.randint(0, 32)
        image = torch.from_numpy(tile[:, top : top + SIDE, left : left + SIDE]).float().div_(255.0)
        if random.random() < 0.5:
            image = image.flip(-1)
        return focus(self.jitter(image)).sub_(0.5).div_(0.25)

    def __getitem__(self, index):
        tile = self.tiles[index % TILES]
        return self.view(tile, self.focus[0]), self.view(tile, self.focus[1])


class TileEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = timm.create_model("resnet18" if SMALL else "resnet50", num_classes=0)
        width = self.trunk.num_features
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128))

    def forward(self, x):
        return F.normalize(self.head(self.trunk(x)), dim=-1)


def nt_xent(z, temperature=0.2):
    n = z.shape[0] // 2
    scores = z @ z.t() / temperature
    scores.fill_diagonal_(float("-inf"))
    target = torch.arange(2 * n, device=z.device).roll(n)
    return F.cross_entropy(scores, target)


def seed_worker(worker):
    random.seed(torch.initial_seed() % 2**32)


def main():
    torch.manual_seed(7)
    random.seed(7)
    torch.backends.cudnn.benchmark = True
    model = TileEncoder().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(
        TwoViews(STEPS * BATCH),
        batch_size=BATCH,
        num_workers=WORKERS,
        drop_last=True,
        pin_memory=device == "cuda",
        worker_init_fn=seed_worker,
    )
    started, step = time.perf_counter(), 0
    for first, second in loader:
        views = [view.to(device, non_blocking=True) for view in (first, second)]
        images = torch.cat(views).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, dtype=torch.bfloat16):
            z = model(images)
        loss = nt_xent(z.float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
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
