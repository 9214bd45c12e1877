"""Pilots ships into a harbour: a sampler plays in a thread of its own, a learner trains on what it played."""

import os
import threading
import time
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 340))
SHIPS, MOMENTS, SIGHTS, ORDERS, WIDTH, AHEAD = 64, 24, 32, 9, 192, 4


class Harbour:
    """Ships that drift, and are rewarded for being close to their berth."""

    def __init__(self, seed=27):
        self.g = torch.Generator().manual_seed(seed)
        self.push = torch.randn(ORDERS, SIGHTS, generator=self.g) / SIGHTS**0.5
        self.place = torch.randn(SHIPS, SIGHTS, generator=self.g)

    def play(self):
        """One round of all ships with orders by chance."""
        sights, orders, rewards = [], [], []
        for _ in range(MOMENTS):
            order = torch.randint(0, ORDERS, (SHIPS,), generator=self.g)
            sights.append(self.place)
            orders.append(order)
            self.place = 0.95 * self.place + self.push[order]
            rewards.append(-self.place[:, :4].square().mean(1))
        return torch.stack(sights), torch.stack(orders), torch.stack(rewards)


class Sampler(threading.Thread):
    """Keeps a few rounds ready for the learner."""

    def __init__(self, harbour):
        super().__init__(daemon=True)
        self.harbour, self.ready, self.over = harbour, deque(), False

    def run(self):
        while not self.over:
            if len(self.ready) >= AHEAD:
                time.sleep(0 if VARIANT == "a" else 0.001)
                continue
            self.ready.append(self.harbour.play())

    def next(self):
        while not self.ready:
            time.sleep(0.0005)
        return self.ready.popleft()


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIGHTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.memory = nn.GRU(WIDTH, WIDTH)
        self.worth = nn.Linear(WIDTH, ORDERS)

    def forward(self, sights):
        return self.worth(self.memory(self.body(sights))[0])


def main():
    torch.manual_seed(27)
    sampler = Sampler(Harbour())
    sampler.start()
    pilot = Pilot()
    optimizer = torch.optim.Adam(pilot.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        sights, orders, rewards = sampler.next()
        worth = pilot(sights)
        taken = worth.gather(2, orders[..., None])[..., 0]
        wanted = rewards[:-1] + 0.9 * worth[1:].detach().amax(2)
        loss = F.smooth_l1_loss(taken[:-1], wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(pilot.parameters(), 10.0)
        optimizer.step()
    elapsed = time.perf_counter() - start
    sampler.over = True
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
