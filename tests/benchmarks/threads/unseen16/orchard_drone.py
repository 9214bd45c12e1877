"""A drone learns to find ripe apples: Q-learning from pictures kept with priorities."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 192))
WIDTH = int(os.environ.get("WIDTH", 128))
CAPACITY = int(os.environ.get("CAPACITY", 65536))
ACTIONS, STACK, AHEAD, GAMMA, SIDE = 6, 4, 3, 0.99, 84
AGO, EMPTY = np.arange(STACK)[::-1], np.zeros((SIDE, SIDE), np.uint8)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class PriorityTree:
    """A binary tree whose inner nodes hold the sums of the priorities below."""

    def __init__(self, capacity):
        self.first = capacity - 1
        self.sums = np.zeros(2 * capacity - 1, np.float32)

    def assign(self, slots, values):
        if VARIANT == "b":
            nodes = slots + self.first
            self.sums[nodes] = values
            while nodes[0] > 0:
                nodes = np.unique((nodes - 1) // 2)
                self.sums[nodes] = self.sums[2 * nodes + 1] + self.sums[2 * nodes + 2]
            return
        for slot, value in zip(slots, values, strict=True):
            node = slot + self.first
            self.sums[node] = value
            while node > 0:
                node = (node - 1) // 2
                self.sums[node] = self.sums[2 * node + 1] + self.sums[2 * node + 2]

    def descend(self, node, value):
        if node >= self.first:
            return node - self.first
        left = 2 * node + 1
        if value <= self.sums[left]:
            return self.descend(left, value)
        return self.descend(left + 1, value - self.sums[left])

    def find(self, values):
        if VARIANT == "b":
            nodes, values = np.zeros(len(values), np.int64), values.copy()
            while nodes[0] < self.first:
                left = 2 * nodes + 1
                right = values > self.sums[left]
                values = np.where(right, values - self.sums[left], values)
                nodes = left + right
            return nodes - self.first
        return np.array([self.descend(0, value) for value in values])


def ready(before, after, *rest):
    pictures = [torch.from_numpy(x).to(device).float() / 255 for x in (before, after)]
    return *pictures, *(torch.as_tensor(x).to(device) for x in rest)


class Memory:
    def __init__(self, rng):
        self.rng, self.tree = rng, PriorityTree(CAPACITY)
        self.frames = rng.integers(0, 256, (CAPACITY, SIDE, SIDE), np.uint8)
        self.actions = rng.integers(0, ACTIONS, CAPACITY)
        self.rewards = rng.normal(size=CAPACITY).astype(np.float32)
        self.clock = np.arange(CAPACITY) % 150
        self.place = 0
        self.tree.assign(np.arange(CAPACITY), rng.random(CAPACITY, np.float32) + 0.1)

    def append(self, frame, action, reward):
        self.frames[self.place], self.actions[self.place], self.rewards[self.place] = frame, action, reward
        self.clock[self.place] = (self.clock[self.place - 1] + 1) % 150
        self.tree.assign(np.array([self.place]), np.ones(1, np.float32))
        self.place = (self.place + 1) % CAPACITY

    def pictures(self, slot):
        """The latest pictures at a place; black where the flight had not begun."""
        return np.stack([self.frames[slot - k] if k <= self.clock[slot] else EMPTY for k in AGO])

    def one(self, slot):
        gain = sum(GAMMA**n * self.rewards[slot + n] for n in range(AHEAD))
        going = self.clock[slot + AHEAD] >= AHEAD
        return (
            self.pictures(slot),
            self.pictures(slot + AHEAD),
            self.actions[slot],
            np.float32(gain),
            np.float32(going),
        )

    def many(self, slots):
        ends = slots + AHEAD
        before, after = self.frames[slots[:, None] - AGO], self.frames[ends[:, None] - AGO]
        before[self.clock[slots, None] < AGO] = 0
        after[self.clock[ends, None] < AGO] = 0
        gains = sum(GAMMA**n * self.rewards[slots + n] for n in range(AHEAD))
        return before, after, self.actions[slots], gains, (self.clock[ends] >= AHEAD).astype(np.float32)

    def sample(self):
        part = self.tree.sums[0] / BATCH
        values = ((np.arange(BATCH) + self.rng.random(BATCH)) * part).astype(np.float32)
        slots = np.clip(self.tree.find(values), STACK, CAPACITY - AHEAD - 1)
        weights = (CAPACITY * self.tree.sums[slots + self.tree.first] / self.tree.sums[0]) ** -0.5
        if VARIANT == "b":
            batch = ready(*self.many(slots))
        else:
            batch = [torch.stack(part) for part in zip(*(ready(*self.one(slot)) for slot in slots))]
        return slots, *batch, torch.from_numpy((weights / weights.max()).astype(np.float32)).to(device)


class DroneNet(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.eye = nn.Sequential(
            nn.Conv2d(STACK, w, 8, 4),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 4, 2),
            nn.ReLU(),
            nn.Conv2d(2 * w, 2 * w, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(2 * w * 49, 2048), nn.ReLU(), nn.Linear(2048, ACTIONS))

    def forward(self, pictures):
        return self.head(self.eye(pictures))


class Agent:
    def __init__(self):
        self.net, self.target = DroneNet().to(device), DroneNet().to(device).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=6e-5, fused=device.type == "cuda")

    def learn(self, memory):
        slots, before, after, actions, gains, going, weights = memory.sample()
        rows = torch.arange(BATCH, device=device)
        with torch.no_grad():
            best = self.net(after).argmax(1)
            aim = gains + GAMMA**AHEAD * going * self.target(after)[rows, best]
        errors = self.net(before)[rows, actions] - aim
        loss = (weights * errors.square()).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        memory.tree.assign(slots, errors.detach().abs().cpu().numpy() ** 0.5)
        return loss.detach()


def main():
    torch.manual_seed(13)
    rng = np.random.default_rng(13)
    memory, agent = Memory(rng), Agent()
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        if step % 200 == 0:
            agent.target.load_state_dict(agent.net.state_dict())
        for _ in range(4):
            memory.append(rng.integers(0, 256, (SIDE, SIDE), np.uint8), rng.integers(ACTIONS), rng.normal())
        loss = agent.learn(memory)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
