"""Deep Q-learning on a made-up cart."""

import os
import random
import time
from collections import deque

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
SIZE = 8
BATCH = 1024


class Cart:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.dynamics = self.rng.standard_normal((SIZE, SIZE)) * 0.3
        self.state = np.zeros(SIZE, "float32")

    def step(self, action):
        push = 0.1 * (1 if action else -1)
        self.state = np.tanh(self.dynamics @ self.state + push + 0.05 * self.rng.standard_normal(SIZE))
        self.state = self.state.astype("float32")
        return self.state, float(self.state[0] > 0), bool(self.state[1] > 0.9)


class Experiences:
    def __init__(self, size=500_000):
        self.entries = deque(maxlen=size)

    def add(self, *entry):
        self.entries.append(entry)

    def sample(self, count):
        picked = random.sample(self.entries, count)
        states, actions, rewards, following, ends = zip(*picked, strict=True)
        return (np.stack(states), np.array(actions), np.array(rewards, "float32"), np.stack(following),
                np.array(ends, "float32"))  # fmt: skip


class Arrays:
    def __init__(self, size=500_000):
        self.states = np.zeros((size, SIZE), "float32")
        self.actions = np.zeros(size, "int64")
        self.rewards = np.zeros(size, "float32")
        self.following = np.zeros((size, SIZE), "float32")
        self.ends = np.zeros(size, "float32")
        self.count = 0

    def add(self, state, action, reward, following, end):
        i = self.count % len(self.states)
        self.states[i], self.actions[i], self.rewards[i] = state, action, reward
        self.following[i], self.ends[i] = following, end
        self.count += 1

    def sample(self, count):
        i = np.random.randint(0, min(self.count, len(self.states)), count)
        return self.states[i], self.actions[i], self.rewards[i], self.following[i], self.ends[i]


def main():
    torch.manual_seed(0)
    cart = Cart()
    memory = Experiences() if VARIANT == "a" else Arrays()
    net = nn.Sequential(nn.Linear(SIZE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def play(count):
        for _ in range(count):
            state, action = cart.state, random.randrange(2)
            following, reward, end = cart.step(action)
            memory.add(state, action, reward, following, end)

    play(100_000)
    for step in range(STEPS):
        if step == 20:
            start = time.perf_counter()
        play(20)
        states, actions, rewards, following, ends = map(torch.from_numpy, memory.sample(BATCH))
        with torch.no_grad():
            goal = rewards + 0.95 * (1 - ends) * net(following).max(1).values
        value = net(states).gather(1, actions[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
