"""Transfer-bound: every step stops for a blocking copy of its batch from ordinary host memory.

    bottleneck diagnose examples/transfer_bound.py # verdict: transfer-bound (on a GPU)
    python examples/transfer_bound.py              # slow: prints step_ms=...
    python examples/transfer_bound.py --fixed      # fix: pinned memory, copied one batch ahead

A small convolutional network on large images that are all in host memory. A copy from pageable
memory goes through a staging buffer at a fraction of the bus's speed, and the host cannot run ahead
of it. The fix pins the batches once and copies the next one on a second stream while the current
one trains. Needs a GPU; without one the script runs, but copies nothing. Synthetic data.
"""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import nn

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = 1000
WARMUP = 20
BATCH, IMAGE = (192, 256) if GPU else (4, 32)  # 151 MB per batch on a GPU
BATCHES = 4
CHANNELS = 32


def make_model() -> nn.Module:
    def block(channels_in: int, channels_out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
        )

    c = CHANNELS
    return nn.Sequential(
        block(3, c), block(c, 2 * c), block(2 * c, 4 * c), block(4 * c, 8 * c),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * c, 10),
    )  # fmt: skip


def blocking(batches: list[torch.Tensor], steps: int) -> Iterator[torch.Tensor]:
    for step in range(steps):
        yield batches[step % len(batches)].to(DEVICE)


def one_ahead(batches: list[torch.Tensor], steps: int) -> Iterator[torch.Tensor]:
    """Copies batch k + 1 on a stream of its own while batch k is in use."""
    side = torch.cuda.Stream()
    main = torch.cuda.current_stream()

    def fetch(step: int) -> torch.Tensor:
        with torch.cuda.stream(side):
            return batches[step % len(batches)].to(DEVICE, non_blocking=True)

    coming = fetch(0)
    for step in range(steps):
        main.wait_stream(side)
        batch = coming
        batch.record_stream(main)  # its memory may only be reused once the main stream is done
        coming = fetch(step + 1)
        yield batch


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

    batches = [torch.randn(BATCH, 3, IMAGE, IMAGE) for _ in range(BATCHES)]
    copied = blocking
    if args.fixed and GPU:
        batches = [batch.pin_memory() for batch in batches]
        copied = one_ahead

    model = make_model().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    labels = torch.randint(10, (BATCH,), device=DEVICE)
    warmup = min(WARMUP, args.steps // 2)
    for step, images in enumerate(copied(batches, args.steps)):
        if step == warmup:
            start = now()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} fixed={args.fixed} loss={loss.item():.3f}")


if __name__ == "__main__":
    main()
