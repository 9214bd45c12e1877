"""Q-learning from a memory that draws surprising events more often."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
SIZE, SEEN, ACTIONS, BATCH = 1 << 16, 32, 6, 512


class SumTree:
    def __init__(self, size):
        self.size, self.nodes = size, np.zeros(2 * size)

    def set(self, index, value):
        node = int(index) + self.size
        self.nodes[node] = float(value)
        while node > 1:
            node //= 2
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def set_many(self, indices, values):
        nodes = indices + self.size
        self.nodes[nodes] = values
        while nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]

    def draw(self, shares):
        wanted, nodes = shares * self.nodes[1], np.ones(len(shares), dtype=np.int64)
        while nodes[0] < self.size:
            left = self.nodes[2 * nodes]
            right = wanted >= left
            wanted = np.where(right, wanted - left, wanted)
            nodes = 2 * nodes + right
        return nodes - self.size


class Memory:
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.rng = np.random.default_rng(0)
        self.seen, self.then = (torch.randn(SIZE, SEEN, generator=g) for _ in range(2))
        self.action = torch.randint(0, ACTIONS, (SIZE, 1), generator=g)
        self.reward = torch.randn(SIZE, 1, generator=g)
        self.tree = SumTree(SIZE)
        self.tree.set_many(np.arange(SIZE), np.ones(SIZE))

    def sample(self):
        index = self.tree.draw((np.arange(BATCH) + self.rng.random(BATCH)) / BATCH)
        rows = torch.from_numpy(index)
        return index, self.seen[rows], self.action[rows], self.reward[rows], self.then[rows]

    def update_priority(self, index, priority):
        if VARIANT == "b":
            self.tree.set_many(index, priority.numpy())
            return
        for i, p in zip(index, priority, strict=True):
            self.tree.set(i, p)


def network():
    return nn.Sequential(
        nn.Linear(SEEN, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, ACTIONS)
    )


def main():
    torch.manual_seed(0)
    memory, online, target = Memory(), network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        index, seen, action, reward, then = memory.sample()
        with torch.no_grad():
            wanted = reward + 0.99 * target(then).amax(1, keepdim=True)
        error = online(seen).gather(1, action) - wanted
        loss = error.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.update_priority(index, error.detach()[:, 0].abs() + 0.01)
        if step % 100 == 99:
            target.load_state_dict(online.state_dict())
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
