"""Graph-break-bound: torch.compile is on, but a debug line cuts the model into dozens of graphs.

    bottleneck diagnose examples/graph_breaks.py   # verdict: graph-break-bound
    python examples/graph_breaks.py                # slow: prints step_ms=...
    python examples/graph_breaks.py --fixed        # fix: no call that dynamo cannot trace

A residual MLP. Each block calls a logger whose level is off, so nothing is written. Still, dynamo must
leave the compiled code there, run the line in Python and enter the next graph, forward and backward,
in every block of every step. Runs on a GPU and without one (compiling for the CPU needs
a C++ compiler). Synthetic data.
"""

import argparse
import logging
import time

import torch
from torch import nn

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
STEPS = 1000
WARMUP = 40  # covers the compilation
BLOCKS = 24
WIDTH, ROWS = (512, 1024) if GPU else (32, 16)

log = logging.getLogger("model")


class Block(nn.Module):
    def __init__(self, *, debug: bool) -> None:
        super().__init__()
        self.debug = debug
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        gate = torch.sigmoid(self.gate(normed))
        if self.debug:
            log.debug("gate %s", tuple(gate.shape))
        return x + gate * torch.tanh(self.value(normed))


class Model(nn.Module):
    def __init__(self, *, debug: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(debug=debug) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


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

    model = Model(debug=not args.fixed).to(DEVICE)
    compiled = torch.compile(model, fullgraph=args.fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    x = torch.randn(ROWS, WIDTH, device=DEVICE)
    y = torch.randn(ROWS, device=DEVICE)
    warmup = min(WARMUP, args.steps // 2)
    for step in range(args.steps):
        if step == warmup:
            start = now()
        loss = nn.functional.mse_loss(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step_ms = (now() - start) * 1000 / (args.steps - warmup)
    print(f"step_ms={step_ms:.3f} device={DEVICE} fixed={args.fixed} loss={loss.item():.3f}")


if __name__ == "__main__":
    main()
