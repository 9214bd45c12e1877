"""A replay memory that is a deque, sampled by position, which walks it (--stationary: it holds the newest only)."""

import random
import sys
from collections import deque

import torch

STATIONARY = "--stationary" in sys.argv


class Memory:
    def __init__(self):
        self.items = deque(maxlen=4096 if STATIONARY else None)

    def push(self, state):
        for i in range(64):
            self.items.append(state[i])  # grows

    def sample(self, count):
        return torch.stack([self.items[random.randrange(len(self.items))] for _ in range(count)])


random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
optimizer = torch.optim.Adam(model.parameters())
memory = Memory()
for step in range(3000):
    memory.push(torch.randn(64, 16))
    x = memory.sample(256)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
