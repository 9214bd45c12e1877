"""Learns a model of a brick kiln and a controller for it from stretches of stored firings."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 280))
ROOM, SENSORS, VALVES, STRETCH, BATCH, ROUNDS = 5_000_000, 6, 2, 4, 96, 3


class Firings:
    """Moments of firings, one after the other; stretches are drawn that lie within one firing."""

    def __init__(self):
        self.view = torch.zeros(ROOM, SENSORS)
        self.valve = torch.zeros(ROOM, VALVES)
        self.gain = torch.zeros(ROOM)
        self.firing = torch.full((ROOM,), -1)
        self.end = self.number = 0
        self.bounds = None

    def add(self, views, valves, gains):
        place = (self.end + torch.arange(len(views))) % ROOM
        self.view[place], self.valve[place], self.gain[place] = views, valves, gains
        self.firing[place] = self.number
        self.end, self.number = (self.end + len(views)) % ROOM, self.number + 1
        self.bounds = None

    def find_bounds(self):
        """First and last place of each firing."""
        change = self.firing[1:] != self.firing[:-1]
        last = torch.cat([change.nonzero()[:, 0], torch.tensor([ROOM - 1])])
        first = torch.cat([torch.tensor([0]), last[:-1] + 1])
        keep = (last - first + 1 >= STRETCH) & (self.firing[first] >= 0)
        return first[keep], last[keep]

    def draw(self):
        if VARIANT == "a" or self.bounds is None:
            self.bounds = self.find_bounds()
        first, last = self.bounds
        which = torch.randint(len(first), (BATCH,))
        span = last[which] - first[which] - STRETCH + 2
        start = first[which] + (torch.rand(BATCH) * span).long()
        place = start + torch.arange(STRETCH)[:, None]
        return self.view[place], self.valve[place], self.gain[place]


def fire(g, length):
    """A firing: warm walls follow the valves with delay."""
    valves = torch.rand(length, VALVES, generator=g) * 2 - 1
    drive = valves.repeat(1, SENSORS // VALVES) + 0.2 * torch.randn(length, SENSORS, generator=g)
    views = drive.cumsum(0) / torch.arange(1, length + 1)[:, None].sqrt()
    return views, valves, -(views.mean(1) - 0.5).abs()


def mlp(i, o, width=192):
    first = [nn.Linear(i, width), nn.LayerNorm(width), nn.Mish()]
    return nn.Sequential(*first, nn.Linear(width, width), nn.Mish(), nn.Linear(width, o))


class Kiln(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.encode, self.next = mlp(SENSORS, hidden), mlp(hidden + VALVES, hidden)
        self.gain, self.control = mlp(hidden + VALVES, 1), mlp(hidden, VALVES)

    def forward(self, views, valves, gains):
        state, loss = self.encode(views[0]), 0
        for t in range(STRETCH - 1):
            both = torch.cat([state, valves[t]], 1)
            loss = loss + F.mse_loss(self.gain(both)[:, 0], gains[t])
            state = state + self.next(both)
            loss = loss + F.mse_loss(state, self.encode(views[t + 1]).detach())
            loss = loss + 0.1 * F.mse_loss(self.control(state.detach()).tanh(), valves[t + 1])
        return loss / (STRETCH - 1)


def main():
    torch.manual_seed(43)
    g = torch.Generator().manual_seed(43)
    firings = Firings()
    views, valves, gains = fire(g, 4_000_000)
    for views, valves, gains in zip(views.split(500), valves.split(500), gains.split(500), strict=True):
        firings.add(views, valves, gains)
    model = Kiln()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        if step % 10 == 0:
            firings.add(*fire(g, 500))
        for _ in range(ROUNDS):
            loss = model(*firings.draw())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, {firings.number} firings")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
