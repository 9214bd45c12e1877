"""Trains a value network that chooses the next parcel of a delivery round from replayed choices."""

from __future__ import annotations

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "2200"))
BATCH = int(os.environ.get("BATCH", "512"))
PARCELS = int(os.environ.get("PARCELS", "12"))
HIDDEN = int(os.environ.get("HIDDEN", "256"))
REPLAY = int(os.environ.get("REPLAY", "30000"))
PAST_ROUNDS = int(os.environ.get("PAST_ROUNDS", "22000"))
SPAN = int(os.environ.get("SPAN", "6001"))
REFRESH = int(os.environ.get("REFRESH", "4"))


class Replay:
    """Choices of earlier rounds: where the van was, what it took, what that cost, what came next."""

    def __init__(self, size, parcels):
        generator = torch.Generator().manual_seed(4)
        width = 3 * parcels
        self.state = torch.rand(size, width, generator=generator)
        self.taken = torch.randint(0, parcels, (size,), generator=generator)
        self.cost = -self.state.gather(1, self.taken[:, None]).squeeze(1)
        self.after = (self.state + 0.05 * torch.randn(size, width, generator=generator)).clamp(0, 1)
        self.generator = generator

    def draw(self, count):
        rows = torch.randint(0, len(self.taken), (count,), generator=self.generator)
        return self.state[rows], self.taken[rows], self.cost[rows], self.after[rows]


class Progress:
    """The rewards of all rounds so far and their smoothed curve."""

    def __init__(self, past, span):
        rng = np.random.default_rng(6)
        self.rewards = list(-3.0 + np.linspace(0, 1, past) + 0.5 * rng.standard_normal(past))
        window = np.hanning(span)
        self.window = window / window.sum()
        self.curve = np.zeros(0)

    def add(self, reward):
        self.rewards.append(reward)

    def smoothed(self):
        rewards = np.asarray(self.rewards)
        if VARIANT == "a":
            return np.convolve(rewards, self.window, mode="valid")
        size = 1 << (len(rewards) + len(self.window)).bit_length()
        product = np.fft.rfft(rewards, size) * np.fft.rfft(self.window, size)
        return np.fft.irfft(product, size)[len(self.window) - 1 : len(rewards)]

    def refresh(self):
        self.curve = self.smoothed()


class ValueNet(nn.Module):
    def __init__(self, parcels, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3 * parcels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.head = nn.Linear(hidden, parcels)

    def forward(self, state):
        return self.head(self.body(state))


def main():
    torch.manual_seed(0)
    replay = Replay(REPLAY, PARCELS)
    progress = Progress(PAST_ROUNDS, SPAN)
    model = ValueNet(PARCELS, HIDDEN)
    target = ValueNet(PARCELS, HIDDEN)
    target.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        state, taken, cost, after = replay.draw(BATCH)
        with torch.no_grad():
            goal = cost + 0.95 * target(after).amax(1)
        value = model(state).gather(1, taken[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.add(float(cost.mean()))
        if step % REFRESH == 0:
            progress.refresh()
    elapsed = time.perf_counter() - start
    print(f"reward {progress.curve[-1]:.4f}")
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
