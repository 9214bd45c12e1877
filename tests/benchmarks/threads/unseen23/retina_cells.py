"""Tells what a retina sees from its spikes: a network of leaky cells, trained through its spikes."""

import os
import time
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 420))
BATCH, CELLS, KINDS, TICKS, WINDOW = 48, 200, 8, 12, 60


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + 10 * x.abs()).square()


class Record:
    """The spikes of a layer in the last ticks."""

    def __init__(self):
        self.kept = torch.zeros(WINDOW, BATCH, CELLS) if VARIANT == "a" else deque(maxlen=WINDOW)

    def add(self, spikes):
        if VARIANT == "a":
            self.kept = torch.cat((self.kept[1:], spikes.detach()[None]))
        else:
            self.kept.append(spikes.detach())

    def rate(self):
        return torch.stack(list(self.kept)).mean().item()


class Leaky(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.into = nn.Linear(inputs, CELLS)
        self.record = Record()

    def begin(self):
        self.level = torch.zeros(BATCH, CELLS)

    def forward(self, x):
        self.level = 0.9 * self.level + self.into(x)
        spikes = Spike.apply(self.level - 1)
        self.level = self.level - spikes.detach()
        self.record.add(spikes)
        return spikes


class Retina(nn.Module):
    def __init__(self, inputs=144):
        super().__init__()
        self.layers = nn.ModuleList([Leaky(inputs), Leaky(CELLS), Leaky(CELLS)])
        self.read = nn.Linear(CELLS, KINDS)

    def forward(self, light):
        for layer in self.layers:
            layer.begin()
        total = 0
        for tick in range(TICKS):
            x = light[:, tick]
            for layer in self.layers:
                x = layer(x)
            total = total + self.read(x)
        return total / TICKS


def main():
    torch.manual_seed(51)
    shapes = torch.rand(KINDS, 144).square()
    model = Retina()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        kind = torch.randint(0, KINDS, (BATCH,))
        light = (torch.rand(BATCH, TICKS, 144) < shapes[kind][:, None]).float()
        loss = F.cross_entropy(model(light), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, rate {model.layers[-1].record.rate():.3f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
