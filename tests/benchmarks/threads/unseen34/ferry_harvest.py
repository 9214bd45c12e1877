"""Double DQN that steers ferries, learning from a prioritised replay of crossings."""

import copy
import operator
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BY_ONE = os.environ.get("VARIANT", "a") == "a"
STEPS = int(os.environ.get("STEPS", "1700"))
BATCH = int(os.environ.get("BATCH", "1024"))
CAPACITY = int(os.environ.get("CAPACITY", str(2**18)))
STATE = int(os.environ.get("STATE", "128"))
WIDTH = int(os.environ.get("WIDTH", "1536"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class SegmentTree:
    def __init__(self, operation, of_two):
        self.operation = of_two if BY_ONE else operation
        tree = np.ones(2 * CAPACITY)
        for n in range(CAPACITY.bit_length() - 2, -1, -1):
            high = 2 ** (n + 1)
            tree[high // 2 : high] = operation(tree[high : 2 * high : 2], tree[high + 1 : 2 * high : 2])
        self.tree = tree.tolist() if BY_ONE else tree

    def set_leaf(self, idx, val):
        idx += CAPACITY
        self.tree[idx] = val
        while idx > 1:
            idx //= 2
            self.tree[idx] = self.operation(self.tree[2 * idx], self.tree[2 * idx + 1])

    def set_leaves(self, leaves, val):
        nodes = leaves + CAPACITY
        self.tree[nodes] = val
        while nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self.tree[nodes] = self.operation(self.tree[2 * nodes], self.tree[2 * nodes + 1])

    def retrieve(self, upperbound):
        idx = 1
        while idx < CAPACITY:
            idx = 2 * idx
            if self.tree[idx] <= upperbound:
                upperbound -= self.tree[idx]
                idx += 1
        return idx - CAPACITY

    def retrieve_batch(self, upperbound):
        idx = np.ones(len(upperbound), dtype=np.int64)
        while idx[0] < CAPACITY:
            right = self.tree[2 * idx] <= upperbound
            upperbound = upperbound - np.where(right, self.tree[2 * idx], 0.0)
            idx = 2 * idx + right
        return idx - CAPACITY


class CrossingReplay:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.sums, self.mins = SegmentTree(np.add, operator.add), SegmentTree(np.minimum, min)
        self.state = torch.randn(CAPACITY, STATE, device=device)
        self.next_state = self.state + 0.1 * torch.randn(CAPACITY, STATE, device=device)
        self.action = torch.randint(18, (CAPACITY,), device=device)
        self.reward = self.next_state[:, 0] - self.state[:, 0]

    def weigh(self, idx, beta):
        max_weight = (self.mins.tree[1] / self.sums.tree[1]) ** (-beta)
        return (self.sums.tree[idx + CAPACITY] / self.sums.tree[1]) ** (-beta) / max_weight

    def sample(self, batch, beta):
        bounds = (np.arange(batch) + self.rng.random(batch)) * (float(self.sums.tree[1]) / batch)
        if BY_ONE:
            idx = [self.sums.retrieve(bound) for bound in bounds.tolist()]
            weights = np.array([self.weigh(i, beta) for i in idx])
        else:
            idx = self.sums.retrieve_batch(bounds)
            weights = self.weigh(idx, beta)
        rows = torch.as_tensor(idx, device=device)
        weights = torch.as_tensor(weights, dtype=torch.float32, device=device)
        return self.state[rows], self.action[rows], self.reward[rows], self.next_state[rows], weights, idx

    def update_priorities(self, idx, errors):
        priorities = np.maximum(errors.astype(np.float64), 1e-6) ** 0.6
        for tree in (self.sums, self.mins):
            if BY_ONE:
                for i, priority in zip(idx, priorities.tolist()):
                    tree.set_leaf(i, priority)
            else:
                tree.set_leaves(idx, priorities)


def ferry_net():
    layers = [nn.Linear(STATE, WIDTH)]
    for _ in range(8):
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 18))


torch.manual_seed(0)
online = ferry_net().to(device)
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, fused=device.type == "cuda")
replay = CrossingReplay()
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    state, action, reward, next_state, weights, idx = replay.sample(BATCH, beta=0.4 + 0.6 * step / STEPS)
    with torch.no_grad():
        goal = target(next_state).gather(1, online(next_state).argmax(1, keepdim=True))[:, 0]
    value = online(state).gather(1, action[:, None])[:, 0]
    loss = (weights * F.smooth_l1_loss(value, reward + 0.99 * goal, reduction="none")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    replay.update_priorities(idx, (value - reward - 0.99 * goal).detach().abs().cpu().numpy())
    if step % 500 == 499:
        target.load_state_dict(online.state_dict())
if device.type == "cuda":
    torch.cuda.synchronize()
mean = (time.perf_counter() - start) / (STEPS - warm)
print(f"loss {loss.item():.5f}\n{1000 * mean:.2f} ms per step")
