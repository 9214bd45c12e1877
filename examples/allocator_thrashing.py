"""Allocator thrashing: every step returns its memory to the system and asks for it again.

    bottleneck diagnose examples/allocator_thrashing.py    # verdict: allocator-thrashing
    python examples/allocator_thrashing.py                 # slow: prints step_ms=...
    python examples/allocator_thrashing.py --fixed         # fix: allocator settings

A point-wise network on point clouds that all differ in size.
On a GPU it sets max_split_size_mb, as the out-of-memory message once advised, and a memory cap, as on
a shared card. A cached block may then not be split, so one that served the last cloud does not fit the
next. The allocator reaches the cap and calls cudaFree (which waits for the device) and cudaMalloc many
times per step. With expandable_segments, one reserved range serves every size, without fragmenting.

Without a GPU, glibc maps each large tensor anew and unmaps it when it is freed, so the kernel must
fault in and zero every page of it again. Keeping the memory in the heap avoids that.
Synthetic data.
"""

import argparse
import ctypes
import os
import random
import sys
import time

SLOW, FIXED = "max_split_size_mb:32", "expandable_segments:True"
# Read when torch sets up its allocator, so before the import.
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = FIXED if "--fixed" in sys.argv else SLOW

import torch  # noqa: E402
from torch import nn  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = 1000
WARMUP = 20
POINTS = (30_000, 120_000) if GPU else (530_000, 560_000)  # per step, drawn from this range
WIDTH, LAYERS = (256, 16) if GPU else (16, 1)
CAP_BYTES = 5_000_000_000  # GPU: what this process may take

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h


class PointNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        x = self.first(points)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x).squeeze(-1)


def keep_memory_in_the_heap() -> None:
    """Stops glibc from mapping large blocks one by one and from trimming the heap."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)


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
    torch.set_float32_matmul_precision("high")
    sizes = random.Random(0)
    if GPU:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, CAP_BYTES / total))
    elif args.fixed:
        keep_memory_in_the_heap()

    model = PointNetwork().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    warmup = min(WARMUP, args.steps // 2)
    for step in range(args.steps):
        if step == warmup:
            start = now()
        points = torch.rand(sizes.randint(*POINTS), 3, device=DEVICE)
        target = points.norm(dim=1)
        loss = nn.functional.mse_loss(model(points), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} fixed={args.fixed} loss={loss.item():.3f}")


if __name__ == "__main__":
    main()
