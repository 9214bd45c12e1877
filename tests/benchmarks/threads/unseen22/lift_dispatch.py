"""Which lift answers the call? A Q-network that learns from a large memory, surprising moments first."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 1024))
WIDTH = int(os.environ.get("WIDTH", 4096))
SIZE = int(os.environ.get("SIZE", 1 << 21))
BUILDINGS, SIGHTS, LIFTS, ALPHA, GAMMA = 64, 48, 8, 0.6, 0.98
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Weights:
    def __init__(self, size):
        self.size, self.nodes, self.flat = size, np.zeros(2 * size), np.zeros(size)

    def put(self, places, priorities):
        if VARIANT == "a":
            self.flat[places] = priorities
            return
        node = np.unique(places) + self.size
        self.nodes[places + self.size] = priorities**ALPHA
        while node[0] > 1:
            node = np.unique(node // 2)
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def draw(self, rng, count):
        if VARIANT == "a":
            chances = self.flat**ALPHA
            chances /= chances.sum()
            places = rng.choice(self.size, count, p=chances)
            return places, chances[places]
        left = rng.random(count) * self.nodes[1]
        node = np.ones(count, np.int64)
        while node[0] < self.size:
            node *= 2
            right = left >= self.nodes[node]
            left -= np.where(right, self.nodes[node], 0.0)
            node += right
        return node - self.size, self.nodes[node] / self.nodes[1]


class Memory:
    def __init__(self, rng):
        self.rng, self.next = rng, 0
        self.sights = rng.standard_normal((SIZE, SIGHTS), dtype=np.float32)
        self.after = rng.standard_normal((SIZE, SIGHTS), dtype=np.float32)
        self.lifts = rng.integers(0, LIFTS, SIZE)
        self.waits = -np.abs(self.sights[:, :LIFTS].mean(1))
        self.weights = Weights(SIZE)
        self.weights.put(np.arange(SIZE), rng.random(SIZE) + 0.1)

    def add(self, sights, lifts, waits, after):
        places = (self.next + np.arange(len(sights))) % SIZE
        self.sights[places], self.after[places] = sights, after
        self.lifts[places], self.waits[places] = lifts, waits
        self.weights.put(places, np.ones(len(places)))
        self.next = (self.next + len(places)) % SIZE

    def draw(self, count):
        places, chances = self.weights.draw(self.rng, count)
        importance = (SIZE * chances) ** -0.4
        rows = (self.sights, self.lifts, self.waits, self.after)
        batch = [torch.from_numpy(x[places]).to(device) for x in rows]
        return places, torch.from_numpy(importance / importance.max()).float().to(device), batch


def network():
    layers = [nn.Linear(SIGHTS, WIDTH), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, LIFTS)).to(device)


def main():
    torch.manual_seed(13)
    rng = np.random.default_rng(13)
    model, target = network(), network().requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    memory, sights = Memory(rng), rng.standard_normal((BUILDINGS, SIGHTS), dtype=np.float32)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        if step % 200 == 0:
            target.load_state_dict(model.state_dict())
        lifts = rng.integers(0, LIFTS, BUILDINGS)
        after = 0.9 * sights + 0.4 * rng.standard_normal(sights.shape, dtype=np.float32)
        memory.add(sights, lifts, -np.abs(sights[:, :LIFTS].mean(1)), after)
        sights = after
        places, importance, (now, taken, waits, later) = memory.draw(BATCH)
        with torch.no_grad():
            best = model(later).argmax(1, keepdim=True)
            goal = waits + GAMMA * target(later).gather(1, best)[:, 0]
        value = model(now).gather(1, taken[:, None])[:, 0]
        loss = (importance * F.smooth_l1_loss(value, goal, reduction="none")).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        surprise = (value.detach() - goal).abs().cpu().numpy()
        memory.weights.put(places, surprise.astype(np.float64) + 0.01)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
