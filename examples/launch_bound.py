"""Launch-bound: the operators are so small that issuing them takes longer than computing them.

    bottleneck diagnose examples/launch_bound.py   # verdict: launch-bound
    python examples/launch_bound.py                # slow: prints step_ms=...
    python examples/launch_bound.py --fixed        # fix: torch.compile and a fused optimizer

A GPT too narrow for its device, in eager mode, with an optimizer that loops over the parameters.
Python and the dispatcher decide the step time; the device waits for them. Runs on a GPU and without
one (compiling for the CPU needs a C++ compiler). Synthetic data.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = 1000
WARMUP = 40  # covers the compilation
LAYERS, WIDTH, HEADS = (10, 256, 4) if GPU else (6, 16, 2)
BATCH, LENGTH = (4, 128) if GPU else (1, 8)
VOCABULARY = 512 if GPU else 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, -1).unbind(2)
        heads = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


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
    if not GPU:
        torch.set_num_threads(1)  # operators this small only lose by sharing

    model = GPT().to(DEVICE)
    if args.fixed:
        step_model = torch.compile(model, mode="reduce-overhead" if GPU else "default")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    else:
        step_model = model
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)

    data = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
    tokens, targets = data[:, :-1].contiguous(), data[:, 1:].contiguous()
    warmup = min(WARMUP, args.steps // 2)
    for step in range(args.steps):
        if step == warmup:
            start = now()
        loss = step_model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} fixed={args.fixed} loss={loss.item():.3f}")


if __name__ == "__main__":
    main()
