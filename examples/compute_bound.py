"""Compute-bound: the device is busy all the time, in a precision that it computes slowly.

    bottleneck diagnose examples/compute_bound.py  # verdict: compute-bound
    python examples/compute_bound.py               # slow: prints step_ms=...
    python examples/compute_bound.py --fixed       # fix: a faster precision

A transformer encoder. On a GPU it runs in plain float32, with TF32 off as PyTorch ships it; the fix
is bfloat16 autocast (and TF32 for what stays in float32). Without a GPU it runs in float64, as
happens when data from NumPy is not converted; the fix is float32. Synthetic data.
"""

import argparse
import time

import torch
from torch import nn

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = 1000
WARMUP = 20
WIDTH, LAYERS, HEADS = (1024, 6, 16) if GPU else (128, 2, 4)
BATCH, LENGTH = (8, 1024) if GPU else (8, 64)
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

    dtype = torch.float32 if GPU or args.fixed else torch.float64
    autocast = torch.autocast("cuda", torch.bfloat16, enabled=GPU and args.fixed)
    if args.fixed:
        torch.set_float32_matmul_precision("high")

    model = Encoder().to(DEVICE, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=GPU)
    features = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=dtype)
    labels = torch.randint(CLASSES, (BATCH,), device=DEVICE)
    warmup = min(WARMUP, args.steps // 2)
    for step in range(args.steps):
        if step == warmup:
            start = now()
        with autocast:
            loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} fixed={args.fixed} loss={loss.item():.3f}")


if __name__ == "__main__":
    main()
