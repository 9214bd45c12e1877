"""Forecasts the queues at the piers of a ferry line, with gradients kept within bounds."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 520))
PIERS, HOURS, PAST, AHEAD, BATCH = 12, 6_000, 36, 6, 32


def make_queues():
    """Rhythm of the day at each pier, rushes at some hours, and weather that all share."""
    g = torch.Generator().manual_seed(29)
    hour = torch.arange(HOURS)[:, None]
    shift = torch.rand(2, PIERS, generator=g)
    daily = torch.sin(hour * 2 * torch.pi / 24 + 4 * shift[0]).clamp(min=0) * (1 + shift[1])
    weather = torch.randn(HOURS, 1, generator=g).cumsum(0)
    weather = (weather - weather.mean()) / weather.std()
    rush = (torch.rand(HOURS, PIERS, generator=g) < 0.01) * 4.0
    return daily - 0.3 * weather + rush + 0.1 * torch.randn(HOURS, PIERS, generator=g)


class QueueModel(nn.Module):
    def __init__(self, width=96, depth=4):
        super().__init__()
        self.memory = nn.GRU(PIERS, width, batch_first=True)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
        )
        self.head = nn.Linear(width, AHEAD * PIERS)

    def forward(self, past):
        _, state = self.memory(past)
        x = state[0]
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).view(-1, AHEAD, PIERS)


class Trainer:
    """Keeps each gradient within the bound, since rushes would throw the model about."""

    def __init__(self, model, bound=0.05):
        self.model, self.bound = model, bound
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        if VARIANT == "b":
            self.guard()

    def guard(self):
        for weight in self.model.parameters():
            weight.register_hook(lambda slope: slope.clamp(-self.bound, self.bound))

    def step(self, past, future):
        if VARIANT == "a":
            self.guard()
        loss = F.mse_loss(self.model(past), future)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main():
    torch.manual_seed(29)
    queues = make_queues()
    trainer = Trainer(QueueModel())
    warm = min(10, STEPS // 2)
    total = torch.zeros(())
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        first = torch.randint(0, HOURS - PAST - AHEAD, (BATCH, 1))
        hours = queues[first + torch.arange(PAST + AHEAD)]
        total += trainer.step(hours[:, :PAST], hours[:, PAST:])
    elapsed = time.perf_counter() - start
    print(f"mean loss {total.item() / STEPS:.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
