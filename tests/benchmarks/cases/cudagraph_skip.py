"""CUDA graphs are asked for and skipped: one small tensor is made on the CPU inside the model.

python tests/benchmarks/cases/cudagraph_skip.py [--fixed]          fix: it is made on the device
"""

from __future__ import annotations

import torch
from small_gpt import DEVICE, GPT, GPU, batch_of, options, train

LAYERS, WIDTH, HEADS = (12, 256, 4) if GPU else (2, 32, 2)
BATCH, LENGTH = (4, 128) if GPU else (1, 8)


class PlacedGPT(GPT):
    made_on = "cpu"

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=self.made_on)
        x = self.tokens(tokens) + self.places(places.to(tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> None:
    args = options()
    torch.manual_seed(0)
    model = PlacedGPT(LAYERS, WIDTH, HEADS).to(DEVICE)
    model.made_on = DEVICE if args.fixed else "cpu"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    fixed = batch_of(BATCH, LENGTH)
    train(torch.compile(model, mode="reduce-overhead"), optimizer, lambda step: fixed, args)


if __name__ == "__main__":
    main()
