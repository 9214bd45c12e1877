"""Forecasts the delays of trams at the next stops from those at the last ones."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
STOPS, PAST, AHEAD, BATCH = 24, 20, 6, 4


def make_delays(days=400):
    """Delays that grow towards the rush hours and wander from stop to stop."""
    g = torch.Generator().manual_seed(31)
    hour = torch.linspace(0, 6.28, PAST + AHEAD)
    rush = 3 + 2 * torch.sin(hour + torch.rand(days, 1, generator=g))
    wander = torch.randn(days, PAST + AHEAD, STOPS, generator=g).cumsum(1)
    return rush[..., None] + 0.5 * wander


class Watch:
    """Ends a run that has gone astray before it eats up the night."""

    def __init__(self, model):
        self.model = model

    def look(self, loss):
        if not torch.isfinite(loss):
            raise ValueError("the loss is not a number any more")
        if VARIANT == "a":
            for name, p in self.model.named_parameters():
                if not torch.isfinite(p).all():
                    raise ValueError(f"{name} has gone astray")
                if p.grad is not None and not torch.isfinite(p.grad).all():
                    raise ValueError(f"the slope of {name} has gone astray")


class Block(nn.Module):
    """Mixes the hours of each channel, then the channels of each hour."""

    def __init__(self, width, hours):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.hours = nn.Sequential(nn.Linear(hours, 2 * hours), nn.GELU(), nn.Linear(2 * hours, hours))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        x = x + self.scale * self.hours(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class DelayMixer(nn.Module):
    def __init__(self, width=320, depth=12):
        super().__init__()
        self.into = nn.Linear(STOPS, width)
        self.blocks = nn.ModuleList(Block(width, PAST) for _ in range(depth))
        self.norm, self.ahead = nn.LayerNorm(width), nn.Linear(PAST, AHEAD)
        self.out = nn.Linear(width, STOPS)

    def forward(self, past):
        x = self.into(past)
        for block in self.blocks:
            x = block(x)
        x = self.ahead(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return past[:, -1:] + self.out(x)


def main():
    torch.manual_seed(31)
    delays = make_delays()
    model = DelayMixer()
    watch = Watch(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        batch = delays[torch.randint(0, len(delays), (BATCH,))]
        past, ahead = batch[:, :PAST], batch[:, PAST:]
        loss = F.huber_loss(model(past), ahead)
        optimizer.zero_grad()
        loss.backward()
        watch.look(loss)
        optimizer.step()
        scheduler.step()
        if step % 100 == 99:
            print(f"{step + 1} loss {loss.item():.4f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
