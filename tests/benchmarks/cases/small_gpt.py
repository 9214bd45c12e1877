"""The model and the training loop that the cases of this folder change in one place each.

In: a subclass of `Block` and how to make a step. Out: `step_ms=...` on stdout, as examples/ print it.
Every case takes `--fixed` (the fix applied) and `--steps`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
VOCABULARY = 2048


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, block: Callable[..., nn.Module] = Block) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(2048, width)
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def options(**extra: str) -> argparse.Namespace:
    """Read the command line; `extra` names further options with their help."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    for name, text in extra.items():
        parser.add_argument(f"--{name}", default="", help=text)
    return parser.parse_args()


def batch_of(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = torch.randint(VOCABULARY, (batch, length + 1), device=DEVICE)
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


def now() -> float:
    """Host clock, read once the device has nothing left to do."""
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def train(
    model: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    args: argparse.Namespace,
    *,
    warmup: int = 40,
    bf16: bool = False,
) -> None:
    warmup = min(warmup, args.steps // 2)
    for step in range(args.steps):
        if step == warmup:
            start = now()
        tokens, targets = batches(step)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} loss={loss.item():.3f}")
