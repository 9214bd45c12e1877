"""A walker on a ring learns from the log of an old controller and from its own steps (TD3-like).

python magpie_circuit.py
"""

import copy
import os
import random
import time
from collections import deque

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3000))
WARM_UP = 10

STATE, ACTION = 16, 4
LOGGED = 900_000
CAPACITY = 1_000_000
BATCH = 400
WIDTH = 256
GAMMA = 0.97


class Replay:
    """Keeps the latest transitions, each as one row: state, action, reward, next state."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.place = 0
        self.rows = deque(maxlen=capacity) if VARIANT == "a" else []

    def add(self, row):
        if isinstance(self.rows, deque) or len(self.rows) < self.capacity:
            self.rows.append(row)
        else:
            self.rows[self.place] = row
        self.place = (self.place + 1) % self.capacity

    def sample(self, size):
        chosen = random.sample(range(len(self.rows)), size)
        rows = torch.from_numpy(np.stack([self.rows[i] for i in chosen]))
        return rows.split([STATE, ACTION, 1, STATE], dim=1)


class Ring:
    """A linear system that the actions push around; the reward is for staying near the ring."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        turn = np.linalg.qr(self.rng.normal(size=(STATE, STATE)))[0]
        self.turn = (0.98 * turn).astype(np.float32)
        self.push = (0.3 * self.rng.normal(size=(ACTION, STATE))).astype(np.float32)

    def start(self, count):
        return self.rng.normal(size=(count, STATE)).astype(np.float32)

    def step(self, state, action):
        following = state @ self.turn + action @ self.push
        following += 0.02 * self.rng.normal(size=state.shape).astype(np.float32)
        reward = -np.abs(np.linalg.norm(following, axis=1, keepdims=True) - 2.0)
        return following, reward.astype(np.float32)


def net(entering, leaving):
    return nn.Sequential(
        nn.Linear(entering, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, leaving)
    )


def log_of(ring, replay):
    """What the old controller did, in the order in which it was written down."""
    state = ring.start(9000)
    for _ in range(LOGGED // 9000):
        action = np.tanh(ring.rng.normal(size=(len(state), ACTION))).astype(np.float32)
        following, reward = ring.step(state, action)
        for row in np.concatenate([state, action, reward, following], axis=1):
            replay.add(row)
        state = following


def main():
    random.seed(6)
    torch.manual_seed(6)
    ring, replay = Ring(6), Replay(CAPACITY)
    log_of(ring, replay)
    actor = nn.Sequential(net(STATE, ACTION), nn.Tanh())
    critic = net(STATE + ACTION, 1)
    target = copy.deepcopy(critic)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    state = ring.start(1)
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == WARM_UP:
            begun = time.perf_counter()
        with torch.no_grad():
            action = actor(torch.from_numpy(state)).numpy()
        following, reward = ring.step(state, action)
        replay.add(np.concatenate([state, action, reward, following], axis=1)[0])
        state = following if step % 200 else ring.start(1)
        for _ in range(2):
            s, a, r, n = replay.sample(BATCH)
            with torch.no_grad():
                aim = r + GAMMA * target(torch.cat([n, actor(n)], 1))
            loss = nn.functional.mse_loss(critic(torch.cat([s, a], 1)), aim)
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
        gain = critic(torch.cat([s, actor(s)], 1)).mean()
        actor_optimizer.zero_grad()
        (-gain).backward()
        actor_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), 0.005)
    spent = time.perf_counter() - begun
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * spent / max(STEPS - WARM_UP, 1):.2f} ms per step")


if __name__ == "__main__":
    main()
