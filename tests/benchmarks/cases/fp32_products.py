"""Matrix products in full fp32 on a device that has TF32 units.

python tests/benchmarks/cases/fp32_products.py [--fixed]           fix: float32 precision "high"
"""

from __future__ import annotations

import torch
from small_gpt import DEVICE, GPT, GPU, batch_of, options, train

LAYERS, WIDTH, HEADS = (8, 768, 12) if GPU else (2, 32, 2)
BATCH, LENGTH = (8, 512) if GPU else (1, 32)


def main() -> None:
    args = options()
    torch.manual_seed(0)
    if args.fixed:
        torch.set_float32_matmul_precision("high")
    model = GPT(LAYERS, WIDTH, HEADS).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    fixed = batch_of(BATCH, LENGTH)
    train(model, optimizer, lambda step: fixed, args, warmup=20)


if __name__ == "__main__":
    main()
