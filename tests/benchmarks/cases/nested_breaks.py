"""Two different graph breaks in functions that a block calls, one of them two calls deep.

    python tests/benchmarks/cases/nested_breaks.py [--fixed] [--without rope|log]

    rope    a function under `torch.compiler.disable`, called by `attend`
    log     a logger call in `mlp`

`--without` mends one of the two, so that the price of each break can be measured by itself.
"""

from __future__ import annotations

import logging

import torch
from small_gpt import DEVICE, GPT, GPU, Block, batch_of, options, train
from torch.nn import functional as F

LAYERS, WIDTH, HEADS = (10, 384, 6) if GPU else (2, 32, 2)
BATCH, LENGTH = (4, 256) if GPU else (1, 8)

log = logging.getLogger("model")
MENDED: set[str] = set()


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of channels by an angle that grows with the position."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)[:, None] / 100
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


@torch.compiler.disable
def turned_eagerly(x: torch.Tensor) -> torch.Tensor:
    return turned(x)


class NestedBlock(Block):
    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        return turned(x) if "rope" in MENDED else turned_eagerly(x)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.up(x))
        if "log" not in MENDED:
            log.debug("hidden %s", tuple(x.shape))
        return self.down(x)


def main() -> None:
    args = options(without="rope or log")
    MENDED.update({"rope", "log"} if args.fixed else {args.without})
    torch.manual_seed(0)
    model = GPT(LAYERS, WIDTH, HEADS, NestedBlock).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    fixed = batch_of(BATCH, LENGTH)
    train(torch.compile(model), optimizer, lambda step: fixed, args)


if __name__ == "__main__":
    main()
