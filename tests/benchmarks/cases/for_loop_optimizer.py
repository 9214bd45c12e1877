"""An optimizer that updates one parameter after the other.

python tests/benchmarks/cases/for_loop_optimizer.py [--fixed]      fix: fused=True
"""

from __future__ import annotations

import torch
from small_gpt import DEVICE, GPT, GPU, batch_of, options, train

LAYERS, WIDTH, HEADS = (8, 512, 8) if GPU else (3, 32, 2)
BATCH, LENGTH = (8, 512) if GPU else (1, 8)


def main() -> None:
    args = options()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = GPT(LAYERS, WIDTH, HEADS).to(DEVICE)
    flags = {"fused": True} if args.fixed else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **flags)
    fixed = batch_of(BATCH, LENGTH)
    train(model, optimizer, lambda step: fixed, args, warmup=20)


if __name__ == "__main__":
    main()
