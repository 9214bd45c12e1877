"""Learns to set a cargo pod down on a landing pad of the moon, by Q-learning from its own flights."""

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
MOVES, MEMORY, BATCH, HORIZON = 64, 20_000, 256, 160


class Pod:
    """A pod with a main engine and two small ones; the ground is uneven."""

    def __init__(self, seed, render_mode=None):
        self.random = random.Random(seed)
        self.sparks = random.Random(seed + 1)
        self.render_mode = render_mode
        self.reset()

    def reset(self):
        self.ground = [self.random.uniform(0.0, 0.15) for _ in range(11)]
        self.x, self.y = self.random.uniform(-0.6, 0.6), 1.4
        self.vx, self.vy = self.random.uniform(-0.3, 0.3), -0.1
        self.angle, self.spin, self.age, self.dust = 0.0, 0.0, 0, []
        return self.observe()

    def height(self, x):
        place = min(max((x + 1) * 5, 0), 9.999)
        left = int(place)
        return self.ground[left] + (self.ground[left + 1] - self.ground[left]) * (place - left)

    def observe(self):
        gap = self.y - self.height(self.x)
        return np.array(
            [self.x, self.y, self.vx, self.vy, self.angle, self.spin, gap, self.age / HORIZON], np.float32
        )

    def exhaust(self, strength):
        """What leaves the engine spreads, falls and bounces off the ground."""
        for _ in range(strength):
            turn = self.angle + self.sparks.gauss(0, 0.3)
            speed = self.sparks.uniform(0.5, 1.5)
            self.dust.append([self.x, self.y, math.sin(turn) * speed, -math.cos(turn) * speed, 40])
        for grain in self.dust:
            grain[3] -= 0.03
            grain[0] += 0.02 * grain[2]
            grain[1] += 0.02 * grain[3]
            floor = self.height(grain[0])
            if grain[1] < floor:
                grain[1], grain[3] = floor, -0.4 * grain[3]
            grain[4] -= 1
        self.dust = [grain for grain in self.dust if grain[4] > 0]

    def step(self, action):
        thrust = 0.09 if action == 2 else 0.0
        self.spin += {1: 0.04, 3: -0.04}.get(action, 0.0)
        self.angle += 0.1 * self.spin
        self.vx += -thrust * math.sin(self.angle)
        self.vy += thrust * math.cos(self.angle) - 0.03
        self.x, self.y, self.age = self.x + 0.05 * self.vx, self.y + 0.05 * self.vy, self.age + 1
        if VARIANT == "a" or self.render_mode == "human":
            self.exhaust((2, 5, 12, 5)[action])
        down = self.y <= self.height(self.x)
        reward = -abs(self.x) - 0.3 * abs(self.vy) - 0.2 * abs(self.angle)
        if down:
            reward += 10 - 20 * min(abs(self.vy) + abs(self.x), 1.0)
        return self.observe(), reward, down or abs(self.x) > 1 or self.age >= HORIZON


def network():
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))


def main():
    torch.manual_seed(8)
    rng = np.random.default_rng(8)
    pod, online, target = Pod(8), network(), network()
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)
    states, after = np.zeros((MEMORY, 8), np.float32), np.zeros((MEMORY, 8), np.float32)
    actions, rewards, ends = (
        np.zeros(MEMORY, np.int64),
        np.zeros(MEMORY, np.float32),
        np.zeros(MEMORY, np.float32),
    )
    state, stored, warm = pod.reset(), 0, min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        for _ in range(MOVES):
            with torch.no_grad():
                best = int(online(torch.from_numpy(state)).argmax())
            action = int(rng.integers(4)) if rng.random() < 0.3 else best
            new, reward, done = pod.step(action)
            slot = stored % MEMORY
            states[slot], actions[slot], rewards[slot], after[slot], ends[slot] = (
                state,
                action,
                reward,
                new,
                done,
            )
            state, stored = pod.reset() if done else new, stored + 1
        for _ in range(8):
            rows = rng.integers(0, min(stored, MEMORY), BATCH)
            with torch.no_grad():
                ahead = target(torch.from_numpy(after[rows])).max(1).values
            goal = torch.from_numpy(rewards[rows]) + 0.98 * (1 - torch.from_numpy(ends[rows])) * ahead
            value = online(torch.from_numpy(states[rows])).gather(
                1, torch.from_numpy(actions[rows])[:, None]
            )[:, 0]
            loss = F.smooth_l1_loss(value, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 25 == 0:
            target.load_state_dict(online.state_dict())
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
