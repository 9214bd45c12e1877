"""Allocator thrashing caused by the script: torch.cuda.empty_cache() in the training loop.

    bottleneck diagnose examples/empty_cache.py    # verdict: allocator-thrashing (on a GPU)
    python examples/empty_cache.py                 # slow: prints step_ms=...
    python examples/empty_cache.py --fixed         # fix: the call removed

A transformer encoder that "frees" memory after every step, because some other run once ran out of
memory. The call returns every cached block to the driver, and the next step must ask for all of them
again while the device waits. Needs a GPU; without one the script runs, but the call
does nothing. Synthetic data.
"""

import argparse
import time

import torch
from torch import nn

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = 1000
WARMUP = 20
WIDTH, LAYERS, HEADS = (768, 8, 12) if GPU else (32, 2, 2)
BATCH, LENGTH = (16, 512) if GPU else (4, 16)
CLASSES = 1000


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(features).mean(dim=1))


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

    model = Encoder().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    features = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    labels = torch.randint(CLASSES, (BATCH,), device=DEVICE)
    warmup = min(WARMUP, args.steps // 2)
    for step in range(args.steps):
        if step == warmup:
            start = now()
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not args.fixed:
            torch.cuda.empty_cache()

    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} fixed={args.fixed} loss={loss.item():.3f}")


if __name__ == "__main__":
    main()
