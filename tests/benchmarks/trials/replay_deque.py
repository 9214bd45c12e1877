"""DQN on a small grid world: the replay memory is a deque, sampled by position, which walks it.

Planted: the sampling of the memory (the line is marked). --fixed: a list used as a ring.
"""

import random
import sys
import time
from collections import deque

import numpy as np
import torch
from torch import nn

TRUTH = "host-bound"
ACCEPT = ("input-bound",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
CAPACITY = 1_500_000


class Grid:
    def reset(self):
        self.pos = np.array([0, 0])
        return self.obs()

    def obs(self):
        return np.concatenate([self.pos / 8, np.sin(self.pos)]).astype(np.float32)

    def step(self, a):
        self.pos = np.clip(self.pos + [(1, 0), (-1, 0), (0, 1), (0, -1)][a], 0, 8)
        done = bool((self.pos == 8).all())
        return self.obs(), float(done), done


class Memory:
    def __init__(self):
        self.items = [] if FIXED else deque(maxlen=CAPACITY)
        self.at = 0

    def push(self, item):
        if FIXED and len(self.items) == CAPACITY:
            self.items[self.at] = item
            self.at = (self.at + 1) % CAPACITY
        else:
            self.items.append(item)

    def sample(self, n):
        picked = [self.items[random.randrange(len(self.items))] for _ in range(n)]  # planted
        s, a, r, s2, d = zip(*picked)
        return np.stack(s), np.array(a), np.array(r, np.float32), np.stack(s2), np.array(d, np.float32)


def act(q, s, eps):
    if random.random() < eps:
        return random.randrange(4)
    with torch.no_grad():
        return int(q(torch.from_numpy(s).to(DEV)).argmax())


random.seed(0)
q = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(DEV)
target = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(DEV)
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
memory, env = Memory(), Grid()
s = env.reset()
for i in range(CAPACITY):
    memory.push((s, random.randrange(4), 0.0, s, False))
N = 700
t0 = None
for it in range(N):
    if it == 60:
        t0 = time.perf_counter()
    a = act(q, s, 0.3)
    s2, r, done = env.step(a)
    memory.push((s, a, r, s2, done))
    s = env.reset() if done else s2
    bs, ba, br, bs2, bd = (torch.as_tensor(v, device=DEV) for v in memory.sample(128))
    with torch.no_grad():
        goal = br + 0.99 * (1 - bd) * target(bs2).max(1).values
    loss = nn.functional.smooth_l1_loss(q(bs).gather(1, ba[:, None])[:, 0], goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 100 == 0:
        target.load_state_dict(q.state_dict())
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 60):.3f}")
