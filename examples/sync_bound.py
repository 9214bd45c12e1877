"""Sync-bound: reading numbers from the device one by one leaves it idle in every step.

    bottleneck diagnose examples/sync_bound.py     # verdict: sync-bound (on a GPU)
    python examples/sync_bound.py                  # slow: prints step_ms=...
    python examples/sync_bound.py --fixed          # fix: keep them on the device, read every 50 steps

A transformer encoder whose loop logs the health of every parameter and its gradient. Each `.item()`
waits until the device has caught up, so the host is never ahead of it. Hundreds of times per step the
device is idle while Python launches the next small kernel. Needs a GPU; without one the script runs,
but there is nothing to wait for. Synthetic data.
"""

import argparse
import time

import torch
from torch import nn

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = 1000
WARMUP = 20
READ_EVERY = 50
WIDTH, LAYERS, HEADS = (768, 12, 12) if GPU else (32, 2, 2)
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


def health(parameter: nn.Parameter) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weight, grad = parameter.detach(), parameter.grad
    return weight.norm(), grad.norm(), grad.abs().max()


def read_one_by_one(model: nn.Module) -> dict[str, list[float]]:
    return {name: [value.item() for value in health(p)] for name, p in model.named_parameters()}


def keep_on_device(model: nn.Module) -> torch.Tensor:
    return torch.stack([value for p in model.parameters() for value in health(p)])


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
    history = []
    waiting = []  # fixed: results that have not been read yet
    warmup = min(WARMUP, args.steps // 2)
    for step in range(args.steps):
        if step == warmup:
            start = now()
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        if args.fixed:
            waiting.append(keep_on_device(model))
            if (step + 1) % READ_EVERY == 0:
                history.append(torch.stack(waiting).tolist())
                waiting.clear()
        else:
            history.append(read_one_by_one(model))
        optimizer.step()

    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} fixed={args.fixed} loss={loss.item():.3f}")


if __name__ == "__main__":
    main()
