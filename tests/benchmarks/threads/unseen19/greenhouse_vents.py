"""Learns to open vents and run heaters in greenhouses, from tries in a simple model of them."""

import copy
import math
import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
HOUSES, ROUNDS, MEMORY, BATCH = 128, 4, 60_000, 512
SEES, DOES = 8, 3


def limit(value, low, high):
    if VARIANT == "a":
        return np.clip(value, low, high)
    return low if value < low else high if value > high else value


class Greenhouse:
    """Warmth, damp, soil and growth of one house through days that differ a little."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.reset()

    def reset(self):
        self.hour, self.warm, self.damp, self.soil, self.grown = 0, 14.0, 0.6, 0.5, 0.0
        self.cloud, self.wind = self.dice.random(), self.dice.random()
        return self.seen()

    def seen(self):
        day = math.pi * self.hour / 24
        inside = (self.warm / 10 - 2, self.damp, self.soil, self.grown / 10)
        return (*inside, self.cloud, self.wind, math.sin(2 * day), math.cos(2 * day))

    def step(self, vent, heat, water):
        vent, heat, water = limit(vent, 0.0, 1.0), limit(heat, 0.0, 1.0), limit(water, 0.0, 1.0)
        sun = limit(math.sin(math.pi * (self.hour % 24 - 6) / 12), 0.0, 1.0) * (1 - 0.7 * self.cloud)
        air = vent * (0.2 + 0.5 * self.wind)
        self.warm = limit(self.warm + 3 * sun + 4 * heat - (0.1 + air) * (self.warm - 8 - sun), -5.0, 45.0)
        self.damp = limit(self.damp + 0.1 * self.soil - air * (self.damp - 0.4), 0.0, 1.0)
        self.soil = limit(self.soil + 0.3 * water - 0.02 - 0.03 * sun, 0.0, 1.0)
        comfort = limit(1 - abs(self.warm - 23) / 12, 0.0, 1.0) * limit(2 * self.soil, 0.0, 1.0)
        growth = sun * comfort * (1 - 0.5 * self.damp)
        self.grown += growth
        self.cloud = limit(self.cloud + self.dice.gauss(0, 0.05), 0.0, 1.0)
        self.wind = limit(self.wind + self.dice.gauss(0, 0.05), 0.0, 1.0)
        self.hour += 1
        return self.seen(), growth - 0.1 * heat - 0.05 * water, self.hour == 72


class Memory:
    def __init__(self):
        self.seen, self.then = torch.zeros(2, MEMORY, SEES)
        self.did, self.earned, self.over = torch.zeros(MEMORY, DOES), torch.zeros(MEMORY), torch.zeros(MEMORY)
        self.count = 0

    def add(self, seen, did, earned, then, over):
        rows = (self.count + torch.arange(len(seen))) % MEMORY
        self.seen[rows], self.did[rows], self.then[rows] = seen, did, then
        self.earned[rows], self.over[rows] = torch.tensor([earned, over], dtype=torch.float)
        self.count += len(seen)

    def draw(self):
        rows = torch.randint(0, min(self.count, MEMORY), (BATCH,))
        return self.seen[rows], self.did[rows], self.earned[rows], self.then[rows], self.over[rows]


def mlp(into, out, width=256):
    first, second = nn.Linear(into, width), nn.Linear(width, width)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, out))


def main():
    torch.manual_seed(14)
    houses, memory = [Greenhouse(i) for i in range(HOUSES)], Memory()
    actor, critics = mlp(SEES, DOES), nn.ModuleList([mlp(SEES + DOES, 1), mlp(SEES + DOES, 1)])
    late_net = copy.deepcopy(critics)
    actor_step = torch.optim.Adam(actor.parameters(), lr=3e-4, fused=True)
    critic_step = torch.optim.Adam(critics.parameters(), lr=1e-3, fused=True)
    seen = torch.tensor([house.seen() for house in houses])
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        for _ in range(ROUNDS):
            with torch.no_grad():
                did = torch.sigmoid(actor(seen) + 0.5 * torch.randn(HOUSES, DOES))
            told = [house.step(*does) for house, does in zip(houses, did.tolist(), strict=True)]
            then, earned, over = zip(*told, strict=True)
            memory.add(seen, did, earned, torch.tensor(then, dtype=torch.float), over)
            new = [h.reset() if end else s for h, s, end in zip(houses, then, over, strict=True)]
            seen = torch.tensor(new, dtype=torch.float)
        s, a, r, t, end = memory.draw()
        with torch.no_grad():
            next_pair = torch.cat([t, torch.sigmoid(actor(t))], 1)
            worth = r + 0.97 * (1 - end) * torch.min(*(c(next_pair)[:, 0] for c in late_net))
        loss = sum(F.mse_loss(c(torch.cat([s, a], 1))[:, 0], worth) for c in critics)
        critic_step.zero_grad()
        loss.backward()
        critic_step.step()
        actor_step.zero_grad()
        (-critics[0](torch.cat([s, torch.sigmoid(actor(s))], 1)).mean()).backward()
        actor_step.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(late_net.parameters()), list(critics.parameters()), 0.01)
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
