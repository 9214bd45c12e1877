"""Attention written as product, mask, softmax, product.

python tests/benchmarks/cases/attention_by_hand.py [--fixed]       fix: scaled_dot_product_attention
"""

from __future__ import annotations

import math

import torch
from small_gpt import DEVICE, GPT, GPU, Block, batch_of, options, train

LAYERS, WIDTH, HEADS = (8, 768, 12) if GPU else (2, 32, 2)
BATCH, LENGTH = (8, 1024) if GPU else (1, 32)


class HandBlock(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones(scores.shape[-2:], device=q.device, dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(future, float("-inf")), -1) @ v


def main() -> None:
    args = options()
    torch.manual_seed(0)
    model = GPT(LAYERS, WIDTH, HEADS, Block if args.fixed else HandBlock).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    fixed = batch_of(BATCH, LENGTH)
    train(model, optimizer, lambda step: fixed, args, warmup=20, bf16=GPU)


if __name__ == "__main__":
    main()
