"""Learns to steer boats through a harbour from small camera pictures, by REINFORCE with a baseline."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 180))
BOATS, MOMENTS, SIZE = 48, 6, 32
LENGTH, SKIP = 96, 24


class Memory:
    """The last pictures of each boat; the policy sees four of them, the newest first."""

    def __init__(self):
        self.pictures = torch.zeros(BOATS, LENGTH, SIZE, SIZE)
        self.newest = 0

    def add(self, picture):
        if VARIANT == "a":
            self.pictures = torch.roll(self.pictures, 1, dims=1)
            self.pictures[:, 0] = picture
        else:
            self.newest = (self.newest - 1) % LENGTH
            self.pictures[:, self.newest] = picture

    def view(self):
        ages = torch.arange(0, LENGTH, SKIP)
        return self.pictures[:, (self.newest + ages) % LENGTH]


class Harbour:
    """Boats that drift with the tide; a picture shows the boat as a bright spot, and the quay."""

    def __init__(self, seed=8):
        self.g = torch.Generator().manual_seed(seed)
        self.spot = torch.rand(BOATS, 2, generator=self.g) * SIZE
        self.speed = torch.zeros(BOATS, 2)
        self.quay = torch.rand(BOATS, 2, generator=self.g) * SIZE
        self.grid = torch.arange(SIZE, dtype=torch.float32)

    def picture(self):
        drawn = []
        for place, wide in ((self.spot, 3.0), (self.quay, 6.0)):
            rows = (1 - (self.grid - place[:, :1]).abs() / wide).relu()
            columns = (1 - (self.grid - place[:, 1:]).abs() / wide).relu()
            drawn.append(rows[:, :, None] * columns[:, None, :])
        return drawn[0] - 0.5 * drawn[1]

    def step(self, moves):
        push = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])[moves]
        tide = 0.1 * torch.randn(BOATS, 2, generator=self.g)
        self.speed = 0.8 * self.speed + 0.3 * push + tide
        self.spot = (self.spot + self.speed).clamp(0, SIZE - 1)
        reward = -(self.spot - self.quay).norm(dim=1) / SIZE
        there = reward > -0.08
        self.quay[there] = torch.rand(int(there.sum()), 2, generator=self.g) * SIZE
        return reward + there.float()


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(LENGTH // SKIP, 12, 4, 2), nn.ReLU(), nn.Conv2d(12, 24, 3, 2), nn.ReLU(), nn.Flatten()
        )
        self.body = nn.Sequential(nn.Linear(24 * 49, 128), nn.ReLU())
        self.move, self.value = nn.Linear(128, 5), nn.Linear(128, 1)

    def forward(self, view):
        x = self.body(self.eyes(view))
        return self.move(x).log_softmax(-1), self.value(x)[:, 0]


def main():
    torch.manual_seed(8)
    harbour, memory, pilot = Harbour(), Memory(), Pilot()
    optimizer = torch.optim.Adam(pilot.parameters(), lr=5e-4)
    memory.add(harbour.picture())
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        views, moves, rewards, returns = [], [], [], []
        with torch.no_grad():
            for _ in range(MOMENTS):
                views.append(memory.view())
                moves.append(pilot(views[-1])[0].exp().multinomial(1)[:, 0])
                rewards.append(harbour.step(moves[-1]))
                memory.add(harbour.picture())
            later = pilot(memory.view())[1]
        for reward in reversed(rewards):
            later = reward + 0.95 * later
            returns.insert(0, later)
        scores, values = pilot(torch.cat(views))
        gains = torch.cat(returns) - values
        chosen = scores.gather(1, torch.cat(moves)[:, None])[:, 0]
        loss = gains.square().mean() - (gains.detach() * chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, reward {torch.stack(rewards).mean():.3f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
