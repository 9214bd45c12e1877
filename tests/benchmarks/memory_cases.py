"""Training scripts with one thing wrong with their memory each, and the same with it mended.

    bottleneck diagnose tests/benchmarks/memory_cases.py CASE              # what the tool says of it
    python tests/benchmarks/memory_cases.py CASE [--fixed [FX203]] [--steps 60]    # what is true of it

Prints one line, `step_ms=... peak_bytes=... grown_bytes=... batch=...`: mean step time behind the
warm-up, most that was allocated at once behind it, growth of what is allocated per step, and samples
per step. Needs a GPU; synthetic data, fixed seeds, nothing but torch.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

# Read when torch sets up its allocator, so before the import; not for whoever imports the cases.
if sys.argv[-1] == "--fixed" or "--fixed --steps" in " ".join(sys.argv):
    if {"variable-lengths", "lengths-near-cap", "oom-fragmented"} & set(sys.argv):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
elif sys.argv[0].endswith("memory_cases.py") and "lengths-near-cap" in sys.argv:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:32"

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

STEPS, WARMUP = 60, 10


class Block(nn.Module):
    def __init__(self, width, heads, naive=False):
        super().__init__()
        self.heads, self.naive = heads, naive
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if self.naive:
            scores = (q @ k.transpose(-2, -1)) / (C // self.heads) ** 0.5
            future = torch.ones(T, T, device=x.device, dtype=torch.bool).triu(1)
            y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width=768, layers=8, vocabulary=8192, length=1024, checkpointed=False, naive=False):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 64, naive) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.vocabulary, self.checkpointed = vocabulary, checkpointed

    def features(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.norm(x)

    def forward(self, ids):
        return self.head(self.features(ids))


def loss_of(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.reshape(-1, model.vocabulary).float(), ids[:, 1:].reshape(-1))


def chunked_loss(model, ids, chunk=1024):
    """The same loss with the logits of a few rows at a time."""
    rows = model.features(ids[:, :-1]).reshape(-1, model.head.in_features)
    wanted = ids[:, 1:].reshape(-1)

    def part(some, targets):
        return F.cross_entropy(model.head(some).float(), targets, reduction="sum")

    parts = zip(rows.split(chunk), wanted.split(chunk), strict=True)
    return sum(checkpoint(part, r, t, use_reentrant=False) for r, t in parts) / len(wanted)


def make_gpt(dtype=torch.bfloat16, **sizes):
    return GPT(**sizes).to("cuda", dtype)


def tokens(model, batch, length):
    return torch.randint(model.vocabulary, (batch, length + 1), device="cuda")


class Loop:
    """A plain training step; cases change what they must."""

    batch, length = 16, 512
    cap_gb = None  # what the process may take of the device, as on a smaller or a shared one

    def __init__(self, fixed):
        self.fixed = fixed
        torch.manual_seed(0)
        if self.cap_gb is not None:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(self.cap_gb * 1e9 / total)
        self.model = self.make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.number = 0

    def make(self):
        return make_gpt()

    def step(self):
        self.number += 1
        ids = tokens(self.model, self.batch, self.length)
        self.optimizer.zero_grad()
        loss = loss_of(self.model, ids)
        loss.backward()
        self.optimizer.step()


class EmptyCache(Loop):
    def step(self):
        super().step()
        if not self.fixed:
            torch.cuda.empty_cache()


class VariableLengths(Loop):
    """Lengths 128 to 2048 with naive attention, the process capped just above what the longest needs."""

    batch, cap_gb = 8, 14

    def __init__(self, fixed):
        self.lengths = random.Random(0)
        super().__init__(fixed)

    def make(self):
        return make_gpt(length=2048, naive=True)

    def step(self):
        self.length = self.lengths.randint(128, 2048)
        super().step()


class LengthsNearCap(VariableLengths):
    """The same under max_split_size_mb, as out-of-memory messages advise: blocks of other sizes are no use.

    Ways out: segments that grow (FX201), lengths padded to a multiple of 512 (FX202), the longest
    first (FX203).
    """

    cap_gb, multiple = 19, 512

    def __init__(self, fixed):
        super().__init__(fixed)
        if "FX203" in sys.argv:
            self.length = 2048
            Loop.step(self)

    def make(self):
        return make_gpt(width=512, layers=16, length=2048, naive=True)

    def step(self):
        self.length = self.lengths.randint(128, 2048)
        if "FX202" in sys.argv:
            self.length += -self.length % self.multiple
        Loop.step(self)


class Leak(Loop):
    """Every step's logits are kept "for the metrics"."""

    def __init__(self, fixed):
        super().__init__(fixed)
        self.kept = []

    def step(self):
        ids = tokens(self.model, self.batch, self.length)
        self.optimizer.zero_grad()
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.view(-1, self.model.vocabulary), ids[:, 1:].reshape(-1))
        loss.backward()
        self.optimizer.step()
        self.kept.append(logits.argmax(-1).eq(ids[:, 1:]).sum() if self.fixed else logits.detach())


class GradientsKept(Loop):
    """zero_grad() after the forward: the last step's gradients lie beside the activations."""

    batch, cap_gb = 4, 7.5

    def make(self):
        return make_gpt(torch.float32, width=1024, layers=16)

    def step(self):
        ids = tokens(self.model, self.batch, self.length)
        if self.fixed:
            self.optimizer.zero_grad()
        loss = loss_of(self.model, ids)
        if not self.fixed:
            self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Vocabulary(Loop):
    """A small model in front of 128 k classes."""

    cap_gb = 24

    def make(self):
        return make_gpt(width=512, layers=4, vocabulary=131072)

    def step(self):
        ids = tokens(self.model, self.batch, self.length)
        self.optimizer.zero_grad()
        loss = (chunked_loss if self.fixed else loss_of)(self.model, ids)
        loss.backward()
        self.optimizer.step()


class OptimizerState(Loop):
    """fp32 AdamW on a wide model and few tokens."""

    batch, length, cap_gb = 2, 128, 13

    def __init__(self, fixed):
        super().__init__(fixed)
        if fixed:
            self.optimizer = torch.optim.Adafactor(self.model.parameters(), lr=1e-4)

    def make(self):
        return make_gpt(torch.float32, width=2048, layers=12)


class Activations(Loop):
    """Long sequences: what backward needs is nearly everything."""

    batch, length, cap_gb = 16, 1024, 11

    def make(self):
        return make_gpt(layers=16, checkpointed=self.fixed)


class Recompute(Loop):
    """Checkpointing though the device is nearly empty."""

    batch, length = 16, 1024

    def make(self):
        return make_gpt(layers=16, checkpointed=not self.fixed)


class Spike(Loop):
    """A diversity measure over all pairs, once a step: one large matrix for a moment."""

    cap_gb = 16

    def step(self):
        super().step()
        with torch.no_grad():
            points = torch.randn(40_000, 64, device="cuda")
            if self.fixed:
                parts = [torch.cdist(some, points).mean() for some in points.split(1000)]
                self.spread = torch.stack(parts).mean()
            else:
                self.spread = torch.cdist(points, points).mean()


class SmallBatch(Loop):
    """A batch of 2 on a device that could hold hundreds; fixed: 8 times as many."""

    def __init__(self, fixed):
        self.batch = 16 if fixed else 2
        super().__init__(fixed)


class FailsInLoop(Loop):
    """Batches grow until memory is full, long after the first steps."""

    after, cap_gb = 14, 13

    def step(self):
        if self.number > self.after and not self.fixed:
            self.batch += 32
        super().step()


class Fragmented(Loop):
    """Room enough, were it in one piece: large logits after activations; fixed: segments that grow."""

    cap_gb = 16

    def make(self):
        return make_gpt(width=512, layers=4, vocabulary=131072)


class FailsEarly(FailsInLoop):
    after = 5


class FailsAtOnce(FailsInLoop):
    after = -1
    batch = 512


class FailsAndGoesOn(FailsInLoop):
    """The script catches the error and makes the batch smaller."""

    after = 5

    def step(self):
        try:
            super().step()
        except torch.OutOfMemoryError:
            self.batch, self.after = 16, 10**9


CASES = {
    "empty-cache": EmptyCache,
    "variable-lengths": VariableLengths,
    "lengths-near-cap": LengthsNearCap,
    "leak": Leak,
    "gradients-kept": GradientsKept,
    "vocabulary": Vocabulary,
    "optimizer-state": OptimizerState,
    "activations": Activations,
    "recompute": Recompute,
    "spike": Spike,
    "small-batch": SmallBatch,
    "oom-in-loop": FailsInLoop,
    "oom-early": FailsEarly,
    "oom-at-once": FailsAtOnce,
    "oom-caught": FailsAndGoesOn,
    "oom-fragmented": Fragmented,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--fixed", nargs="?", const="the fix", help="mended; with a number, in that way")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    loop = CASES[args.case](bool(args.fixed))
    for number in range(args.steps):
        if number == WARMUP:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held, start = torch.cuda.memory_allocated(), time.perf_counter()
        loop.step()
    torch.cuda.synchronize()
    counted = args.steps - WARMUP
    step_ms = (time.perf_counter() - start) * 1e3 / counted
    grown = (torch.cuda.memory_allocated() - held) / counted
    peak = torch.cuda.max_memory_allocated()
    print(f"step_ms={step_ms:.3f} peak_bytes={peak} grown_bytes={grown:.0f} batch={loop.batch}")


if __name__ == "__main__":
    main()
