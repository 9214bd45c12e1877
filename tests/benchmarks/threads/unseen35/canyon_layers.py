"""Predict rock layers along drill cores with a compiled gated network whose parts are named ranges."""

import functools
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "900"))
WARM = min(10, STEPS // 2)
CHANNELS = 16
WIDTH = 32
LAYERS = 12
DEPTHS = 144
BATCH = 16
ROCKS = 7


class RangeLog:
    def __init__(self):
        self.enabled = True
        self.open = []
        self.total = {}

    def push(self, name):
        self.open.append((name, time.perf_counter_ns()))
        return len(self.open)

    def pop(self):
        name, begun = self.open.pop()
        self.total[name] = self.total.get(name, 0) + time.perf_counter_ns() - begun
        return len(self.open)


RANGES = RangeLog()


def in_range(func):
    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        if not RANGES.enabled:
            return func(*args, **kwargs)
        RANGES.push(func.__qualname__)
        result = func(*args, **kwargs)
        RANGES.pop()
        return result

    return wrapped


class CoreNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    @in_range
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gain


class StrataGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    @in_range
    def forward(self, value, gate):
        soft = torch.sigmoid(gate * self.slope + self.shift)
        return value * soft * (1.0 + 0.1 * torch.tanh(gate)) + 0.05 * torch.sin(value)


class StrataBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = CoreNorm()
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.gate = StrataGate()
        self.outer = nn.Linear(WIDTH, WIDTH)
        self.after = CoreNorm()

    @in_range
    def forward(self, x):
        value, gate = self.inner(self.norm(x)).chunk(2, -1)
        return x + self.after(self.outer(self.gate(value, gate)))


class CanyonNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(CHANNELS, WIDTH)
        self.blocks = nn.ModuleList([StrataBlock() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, ROCKS)

    def forward(self, core):
        x = self.stem(core)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    RANGES.enabled = VARIANT == "a"
    model = CanyonNet()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mix = torch.randn(CHANNELS, ROCKS, generator=generator)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        core = torch.randn(BATCH, DEPTHS, CHANNELS, generator=generator)
        rock = (core @ mix).argmax(-1)
        loss = F.cross_entropy(compiled(core).flatten(0, 1), rock.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{spent / (STEPS - WARM) * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
