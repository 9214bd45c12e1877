"""A graph break inside the loop over the layers: dynamo gives up the whole forward, not one line.

    python tests/benchmarks/cases/breaks_in_loop.py [--fixed]      fix: the times are not taken

Each round of the loop notes when its layer was done. The function with the loop is skipped; only the
blocks are compiled, each for itself.
"""

from __future__ import annotations

import time

import torch
from small_gpt import DEVICE, GPT, GPU, batch_of, options, train

LAYERS, WIDTH, HEADS = (16, 384, 6) if GPU else (3, 32, 2)
BATCH, LENGTH = (4, 256) if GPU else (1, 8)


class TimedGPT(GPT):
    timed = True

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        done = []
        for block in self.blocks:
            x = block(x)
            if self.timed:
                done.append(time.perf_counter())
        return self.head(x)


def main() -> None:
    args = options()
    torch.manual_seed(0)
    model = TimedGPT(LAYERS, WIDTH, HEADS).to(DEVICE)
    model.timed = not args.fixed
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    fixed = batch_of(BATCH, LENGTH)
    train(torch.compile(model), optimizer, lambda step: fixed, args)


if __name__ == "__main__":
    main()
