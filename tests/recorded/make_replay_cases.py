"""Records the cases of the replay on a GPU machine: a slow step, its trace, and the step once fixed.

    python tests/recorded/make_replay_cases.py [CASE ...] --out FOLDER

For each case: 20 steps timed with nothing attached, 4 steps profiled (CPU, CUDA, sync events), 20
steps of the fixed twin. Needs nothing but torch; writes CASE.pt.trace.json.gz and results.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TEARDOWN_CUPTI"] = "1"

import torch
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function, schedule

VOCABULARY = 8192
Step = Callable[[], None]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, *, naive: bool, hook: str) -> None:
        super().__init__()
        self.heads, self.naive, self.hook = heads, naive, hook
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        if self.naive:
            scores = (q @ k.transpose(-2, -1)) / (D // self.heads) ** 0.5
            future = torch.ones(T, T, device=x.device, dtype=torch.bool).triu(1)
            y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        if self.hook == "item":
            self.last = x.mean().item()
        if self.hook == "break":
            torch._dynamo.graph_break()
        return x


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, *, naive: bool, hook: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(2048, width)
        self.blocks = nn.ModuleList(Block(width, heads, naive=naive, hook=hook) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def gpt(
    layers: int,
    width: int,
    heads: int,
    batch: int,
    length: int,
    *,
    optimizer: str = "foreach",
    bf16: bool = False,
    compiled: bool = False,
    tf32: bool = False,
    naive: bool = False,
    hook: str = "",
    fetch: Callable[[], None] | None = None,
    after: Callable[[torch.Tensor], None] | None = None,
) -> Step:
    """Make a training step."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch._dynamo.reset()
    model = GPT(layers, width, heads, naive=naive, hook=hook).cuda()
    flags: dict[str, Any] = {"fused": True} if optimizer == "fused" else {"foreach": optimizer == "foreach"}
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, **flags)
    net = torch.compile(model) if compiled else model

    def step() -> None:
        with record_function("data"):
            if fetch is not None:
                fetch()
            x = torch.randint(0, VOCABULARY, (batch, length), device="cuda")
        with record_function("forward"), torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(net(x).float().view(-1, VOCABULARY), x.view(-1))
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            opt.step()
        with record_function("zero_grad"):
            opt.zero_grad()
        if after is not None:
            after(loss)

    return step


def item_and_sleep(loss: torch.Tensor) -> None:
    loss.item()
    time.sleep(0.006)


LARGE = {"bf16": True, "optimizer": "fused"}
CASES: dict[str, tuple[Callable[[], Step], Callable[[], Step]]] = {
    "item_layers": (
        lambda: gpt(12, 1024, 16, 8, 512, hook="item", **LARGE),
        lambda: gpt(12, 1024, 16, 8, 512, **LARGE),
    ),
    "item_harmless": (lambda: gpt(12, 256, 8, 4, 128, hook="item"), lambda: gpt(12, 256, 8, 4, 128)),
    "item_hostwork": (
        lambda: gpt(8, 1024, 16, 8, 512, after=item_and_sleep, **LARGE),
        lambda: gpt(8, 1024, 16, 8, 512, after=lambda _: time.sleep(0.006), **LARGE),
    ),
    "input_sleep": (
        lambda: gpt(8, 1024, 16, 8, 512, fetch=lambda: time.sleep(0.03), **LARGE),
        lambda: gpt(8, 1024, 16, 8, 512, **LARGE),
    ),
    "breaks": (
        lambda: gpt(12, 512, 8, 4, 128, optimizer="fused", compiled=True, hook="break"),
        lambda: gpt(12, 512, 8, 4, 128, optimizer="fused", compiled=True),
    ),
    "empty_cache": (
        lambda: gpt(8, 768, 12, 8, 512, after=lambda _: torch.cuda.empty_cache(), **LARGE),
        lambda: gpt(8, 768, 12, 8, 512, **LARGE),
    ),
    "fp32": (
        lambda: gpt(6, 1024, 16, 8, 512, optimizer="fused"),
        lambda: gpt(6, 1024, 16, 8, 512, optimizer="fused", tf32=True),
    ),
    "naive_attn": (
        lambda: gpt(6, 1024, 16, 4, 2048, naive=True, **LARGE),
        lambda: gpt(6, 1024, 16, 4, 2048, **LARGE),
    ),
    "forloop_opt": (
        lambda: gpt(12, 256, 8, 4, 128, optimizer="for-loop"),
        lambda: gpt(12, 256, 8, 4, 128, optimizer="fused"),
    ),
}


def step_ms(step: Step, *, steps: int = 20, warmup: int = 8) -> float:
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1e3


def record(step: Step, target: Path, *, steps: int = 4) -> None:
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=2, active=steps, repeat=1),
        experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True),
        on_trace_ready=lambda p: p.export_chrome_trace(str(target)),
    ) as profiler:
        for _ in range(2 + steps):
            step()
            profiler.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES])
    parser.add_argument("--out", type=Path, default=Path("replay-cases"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, float]] = {}
    for name in options.cases or CASES:
        slow, fixed = CASES[name]
        step = slow()
        results[name] = {"true_ms": step_ms(step)}
        record(step, options.out / f"{name}.pt.trace.json.gz")
        del step
        gc.collect()
        torch.cuda.empty_cache()
        results[name]["fixed_ms"] = step_ms(fixed())
        print(name, results[name], flush=True)
        (options.out / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
