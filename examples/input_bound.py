"""Input-bound: the step waits for its next batch, because one thread reads and augments it.

    bottleneck diagnose examples/input_bound.py    # verdict: input-bound
    python examples/input_bound.py                 # slow: prints step_ms=...
    python examples/input_bound.py --fixed         # fix: DataLoader workers (and pinned memory)

An image classifier. Every sample costs a read from slow storage and an augmentation in numpy; with
`num_workers=0` the training loop pays for all of them, one after the other, before every step.
Runs on a GPU and without one. The data is synthetic: the "read" sleeps and returns random pixels.
"""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = 1000
WARMUP = 20
BATCH = 32
IMAGE = 96  # pixels, after a random crop out of IMAGE + 16
CHANNELS = 64 if GPU else 8
READ_MS = 2.0  # latency of one read from storage
WORKERS = min(16, os.cpu_count() or 1)


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Reads one image, crops, flips, adds noise, normalises."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        rng = np.random.default_rng(index)
        time.sleep(READ_MS / 1000)
        image = rng.integers(0, 256, (3, IMAGE + 16, IMAGE + 16), dtype=np.uint8)
        top, left = rng.integers(0, 16, 2)
        crop = image[:, top : top + IMAGE, left : left + IMAGE].astype(np.float32) / 255
        if rng.random() < 0.5:
            crop = crop[:, :, ::-1]
        crop = crop + rng.normal(0, 0.05, crop.shape).astype(np.float32)
        crop = (crop - crop.mean()) / crop.std()
        return torch.from_numpy(np.ascontiguousarray(crop)), index % 10


def make_model() -> nn.Module:
    def block(channels_in: int, channels_out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
        )

    c = CHANNELS
    return nn.Sequential(
        block(3, c), block(c, 2 * c), block(2 * c, 4 * c),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * c, 10),
    )  # fmt: skip


def now() -> float:
    """Host clock, read once the device has nothing left to do."""
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    torch.manual_seed(0)

    if args.fixed:
        loader = DataLoader(
            Photos(), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True,
            pin_memory=GPU,
        )  # fmt: skip
    else:
        loader = DataLoader(Photos(), batch_size=BATCH)

    model = make_model().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    warmup = min(WARMUP, args.steps // 2)
    for step, (images, labels) in enumerate(loader):
        if step == warmup:
            start = now()
        if step == args.steps:
            break
        images = images.to(DEVICE, non_blocking=True)
        labels = labels.to(DEVICE, non_blocking=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} fixed={args.fixed} loss={loss.item():.3f}")


if __name__ == "__main__":
    main()
