"""Every batch has a length that was not there before, and each length is compiled anew.

    python tests/benchmarks/cases/recompiles_by_shape.py [--fixed]     fix: pad to multiples of 64

`dynamic=False` forbids graphs for all sizes, as people write who read that dynamic shapes are slow.
"""

from __future__ import annotations

import torch
from small_gpt import DEVICE, GPU, VOCABULARY, batch_of, options, train
from torch import nn

WIDTH, BATCH = (512, 16) if GPU else (16, 1)
LENGTHS = range(65, 256)
MULTIPLE = 64


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        return self.head(self.norm(x * torch.tanh(x.mean(1, keepdim=True))))


def main() -> None:
    args = options()
    torch._dynamo.config.cache_size_limit = 1024
    torch._dynamo.config.accumulated_cache_size_limit = 2048
    torch.manual_seed(0)
    model = Bag().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        length = LENGTHS[step * 53 % len(LENGTHS)]
        if args.fixed:
            length = -(-length // MULTIPLE) * MULTIPLE
        return batch_of(BATCH, length)

    train(torch.compile(model, dynamic=False), optimizer, batches, args, warmup=20)


if __name__ == "__main__":
    main()
