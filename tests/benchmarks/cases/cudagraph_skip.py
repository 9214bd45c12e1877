"""CUDA graphs are asked for and skipped: one small tensor is made on the CPU inside the model.

python tests/benchmarks/cases/cudagraph_skip.py [--fixed]          fix: it is made on the device
"""

from __future__ import annotations

import torch
import torch._inductor.config
from small_gpt import DEVICE, GPT, GPU, VOCABULARY, batch_of, options, train

LAYERS, WIDTH, HEADS = (12, 256, 4) if GPU else (2, 32, 2)
BATCH, LENGTH = (4, 128) if GPU else (1, 8)


class ScaledGPT(GPT):
    """Scales its output by a table that is no buffer, so that `model.to(device)` leaves it behind."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__(layers, width, heads)
        self.scale = torch.ones(VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens) * self.scale.to(tokens.device)


def main() -> None:
    args = options()
    torch.manual_seed(0)
    if hasattr(torch._inductor.config, "graph_partition"):
        torch._inductor.config.graph_partition = False
    model = ScaledGPT(LAYERS, WIDTH, HEADS).to(DEVICE)
    if args.fixed:
        model.scale = model.scale.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    fixed = batch_of(BATCH, LENGTH)
    train(torch.compile(model, mode="reduce-overhead"), optimizer, lambda step: fixed, args)


if __name__ == "__main__":
    main()
