"""Eight plain training loops, each eager and compiled: what does torch.compile really bring?

    python tests/benchmarks/would_compile.py KIND                       eager: prints step_ms=...
    python tests/benchmarks/would_compile.py KIND --compile default     compiled (or reduce-overhead)
    python tests/benchmarks/would_compile.py KIND --turns 3 --compile default
                                                  eager and compiled in turns: step_ms=... compiled_ms=...

The kinds differ in what a compiler can do for them: launches, element-wise chains, products that no
compiler makes faster, a loop over time, two models in one step. record_compile.py diagnoses the eager form
and holds the prediction to what `--turns` measures. Synthetic data; without a GPU the sizes only show that
it runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"

Step = Callable[[], torch.Tensor]
Wrap = Callable[[nn.Module], Callable[..., Any]]


def size(gpu: int, cpu: int) -> int:
    return gpu if GPU else cpu


class Block(nn.Module):
    """A transformer block with root-mean-square norms and a gated MLP, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale1, self.scale2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def norm(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm(x, self.scale1)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        h = self.norm(x, self.scale2)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Loop(nn.Module):
    """A gated recurrent cell, unrolled in Python."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = x.new_zeros(x.shape[0], self.width)
        for inputs in self.inner(x).unbind(1):
            i, f, g, o = (inputs + self.outer(hidden)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.head(hidden)


class Chains(nn.Module):
    """Long element-wise chains over large tensors between few small products."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scale = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for mix, scale in zip(self.mix, self.scale, strict=True):
            y = mix(x)
            y = y * torch.sigmoid(1.702 * y) + 0.1 * torch.tanh(x * scale) - 0.01 * y.pow(2)
            x = x + torch.exp(-y.abs()) * scale
        return self.head(x)


class Tables(nn.Module):
    """Many looked-up fields, a small tower on top: recommendation in outline."""

    def __init__(self, fields: int, rows: int, width: int) -> None:
        super().__init__()
        self.fields = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.tower = nn.Sequential(nn.Linear(fields * width, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = [table(column) for table, column in zip(self.fields, ids.unbind(1), strict=True)]
        return self.tower(torch.cat(found, 1))


def one_model(
    model: nn.Module,
    batch: tuple[torch.Tensor, torch.Tensor],
    loss: Callable[..., torch.Tensor],
    wrap: Wrap,
    *,
    bf16: bool = False,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> Step:
    """Return a plain step: forward, zero_grad, backward, optimizer."""
    run, update = wrap(model), optimizer(model.parameters(), lr=1e-4)
    inputs, targets = batch

    def step() -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            out = run(inputs)
            value = loss(out.float(), targets)
        update.zero_grad()
        value.backward()
        update.step()
        return value

    return step


def tokens_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def labels(batch: int) -> torch.Tensor:
    return torch.randint(10, (batch,), device=DEVICE)


def mlp(wrap: Wrap) -> Step:
    width, batch = size(256, 16), size(512, 8)
    layers = [
        m for _ in range(size(12, 2)) for m in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
    ]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE)
    return one_model(model, (torch.randn(batch, width, device=DEVICE), labels(batch)), F.cross_entropy, wrap)


def transformer(wrap: Wrap) -> Step:
    model = Decoder(size(8, 1), size(1024, 32), size(16, 2), size(16384, 64)).to(DEVICE)
    data = torch.randint(size(16384, 64), (size(8, 1), size(1025, 9)), device=DEVICE)
    batch = (data[:, :-1].contiguous(), data[:, 1:].contiguous())
    return one_model(model, batch, tokens_loss, wrap, bf16=True)


def convolutions(wrap: Wrap) -> Step:
    """Plain convolutions in channels_last with bfloat16: little for a compiler to do."""
    channels, batch, side = size(128, 8), size(64, 2), size(56, 8)
    body = [m for _ in range(size(8, 1)) for m in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    model = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *body, *ends)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    images = torch.randn(batch, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    return one_model(
        model, (images, labels(batch)), F.cross_entropy, wrap, bf16=True, optimizer=torch.optim.SGD
    )


def batch_norms(wrap: Wrap) -> Step:
    """Residual blocks with batch norms, contiguous, full precision with TF32 for convolutions."""
    channels, batch, side = size(64, 8), size(64, 2), size(64, 8)
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    blocks = [Residual(channels) for _ in range(size(8, 1))]
    model = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *blocks, *ends).to(DEVICE)
    images = torch.randn(batch, 3, side, side, device=DEVICE)
    return one_model(model, (images, labels(batch)), F.cross_entropy, wrap, optimizer=torch.optim.SGD)


def recurrent(wrap: Wrap) -> Step:
    model = Loop(size(256, 16)).to(DEVICE)
    batch = size(64, 4)
    inputs = torch.randn(batch, size(24, 6), size(256, 16), device=DEVICE)
    return one_model(model, (inputs, labels(batch)), F.cross_entropy, wrap)


def chains(wrap: Wrap) -> Step:
    width, batch = size(512, 16), size(32768, 8)
    model = Chains(width, size(6, 2)).to(DEVICE)
    return one_model(model, (torch.randn(batch, width, device=DEVICE), labels(batch)), F.cross_entropy, wrap)


def tables(wrap: Wrap) -> Step:
    fields, rows, batch = size(26, 3), size(20000, 50), size(4096, 8)
    model = Tables(fields, rows, size(64, 4)).to(DEVICE)
    ids = torch.randint(rows, (batch, fields), device=DEVICE)
    clicks = torch.rand(batch, 1, device=DEVICE).round()
    return one_model(model, (ids, clicks), F.binary_cross_entropy_with_logits, wrap)


def adversarial(wrap: Wrap) -> Step:
    """Two small models, two optimizers, three passes per step."""
    noise, width, batch = size(64, 8), size(512, 16), size(256, 8)

    def tower(first: int, last: int) -> nn.Sequential:
        body = [m for _ in range(4) for m in (nn.Linear(width, width), nn.LeakyReLU(0.2))]
        return nn.Sequential(nn.Linear(first, width), *body, nn.Linear(width, last)).to(DEVICE)

    maker, judge = tower(noise, width), tower(width, 1)
    make, rate = wrap(maker), wrap(judge)
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-4)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-4)
    real = torch.randn(batch, width, device=DEVICE)

    def step() -> torch.Tensor:
        made = make(torch.randn(batch, noise, device=DEVICE))
        rating = rate(torch.cat([real, made.detach()]))
        of_judge.zero_grad()
        (F.softplus(-rating[:batch]).mean() + F.softplus(rating[batch:]).mean()).backward()
        of_judge.step()
        loss = F.softplus(-rate(made)).mean()
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()
        return loss

    return step


KINDS: dict[str, Callable[[Wrap], Step]] = {
    "mlp": mlp,
    "transformer": transformer,
    "convolutions": convolutions,
    "batch_norms": batch_norms,
    "recurrent": recurrent,
    "chains": chains,
    "tables": tables,
    "adversarial": adversarial,
}


def now() -> float:
    """Host clock, read once the device has nothing left to do."""
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def wrapper(mode: str | None) -> Wrap:
    if mode is None:
        return lambda model: model
    return lambda model: torch.compile(model, mode=None if mode == "default" else mode)


def measure(step: Step, steps: int) -> float:
    """Return ms per step of so many steps."""
    start = now()
    for _ in range(steps):
        step()
    return (now() - start) * 1000 / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--compile", choices=("default", "reduce-overhead"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--turns", type=int, default=0, help="eager and compiled in turns, so many times")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.turns:
        # Each form in its own state, warmed up before the first turn; then block by block.
        eager, compiled = (KINDS[args.kind](wrapper(mode)) for mode in (None, args.compile or "default"))
        for form in (eager, compiled):
            measure(form, args.warmup)
        pairs = [(measure(eager, args.steps), measure(compiled, args.steps)) for _ in range(args.turns)]
        slow, fixed = (statistics.median(times) for times in zip(*pairs, strict=True))
        told = ",".join(f"{a:.4f}:{b:.4f}" for a, b in pairs)
        print(f"step_ms={slow:.4f} compiled_ms={fixed:.4f} pairs={told} device={DEVICE}")
        return
    step = KINDS[args.kind](wrapper(args.compile))
    for index in range(args.steps):
        if index == min(args.warmup, args.steps // 2):
            start = now()
        loss = step()
    step_ms = (now() - start) * 1000 / (args.steps - min(args.warmup, args.steps // 2))
    print(f"step_ms={step_ms:.4f} device={DEVICE} loss={loss.item():.4f}")


if __name__ == "__main__":
    main()
