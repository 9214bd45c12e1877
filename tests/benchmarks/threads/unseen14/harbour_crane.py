"""Moving containers with little swing: soft actor-critic, trained on the log of a harbour's crane."""

import copy
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 550))
BATCH = int(os.environ.get("BATCH", 4096))
WIDTH = int(os.environ.get("WIDTH", 2048))
MEMORY = int(os.environ.get("MEMORY", 500_000))
SEEN, MOVES, GAMMA, TAU = 28, 8, 0.99, 0.005
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def layers(before, after):
    return nn.Sequential(
        nn.Linear(before, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, after),
    )  # fmt: skip


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = layers(SEEN, 2 * MOVES)

    def forward(self, seen):
        mean, spread = self.net(seen).chunk(2, -1)
        spread = spread.clamp(-5, 2)
        noise = torch.randn_like(mean)
        raw = mean + spread.exp() * noise
        chance = (-0.5 * noise.square() - spread - 0.919).sum(-1)
        chance = chance - 2 * (0.693 - raw - F.softplus(-2 * raw)).sum(-1)
        return torch.tanh(raw), chance


class Critics(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = layers(SEEN + MOVES, 1), layers(SEEN + MOVES, 1)

    def forward(self, seen, moves):
        x = torch.cat([seen, moves], -1)
        return self.one(x)[:, 0], self.other(x)[:, 0]


class Memory:
    """What was seen, done, earned and seen next."""

    def __init__(self, size, seed=11):
        self.rng = np.random.default_rng(seed)
        seen = self.rng.standard_normal((size, SEEN), dtype=np.float32)
        moves = self.rng.uniform(-1, 1, (size, MOVES)).astype(np.float32)
        following = 0.9 * seen + 0.1 * np.pad(moves, ((0, 0), (0, SEEN - MOVES)))
        earned = -np.square(following[:, :4]).sum(1)
        self.columns = [seen, moves, earned, following]
        if VARIANT == "b":
            self.columns = [torch.from_numpy(column).to(device) for column in self.columns]

    def sample(self, count):
        rows = self.rng.integers(0, len(self.columns[0]), count)
        if VARIANT == "b":
            rows = torch.from_numpy(rows).to(device)
            return [column[rows] for column in self.columns]
        return [torch.from_numpy(column[rows]).to(device) for column in self.columns]


def main():
    torch.manual_seed(13)
    actor, critics, memory = Actor().to(device), Critics().to(device), Memory(MEMORY)
    target = copy.deepcopy(critics).requires_grad_(False)
    fused = device.type == "cuda"
    for_actor = torch.optim.Adam(actor.parameters(), lr=1e-4, fused=fused)
    for_critics = torch.optim.Adam(critics.parameters(), lr=1e-4, fused=fused)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        seen, moves, earned, following = memory.sample(BATCH)
        with torch.no_grad():
            next_moves, chance = actor(following)
            wanted = earned + GAMMA * (torch.minimum(*target(following, next_moves)) - 0.1 * chance)
        one, other = critics(seen, moves)
        loss = F.mse_loss(one, wanted) + F.mse_loss(other, wanted)
        for_critics.zero_grad(set_to_none=True)
        loss.backward()
        for_critics.step()

        critics.requires_grad_(False)
        new_moves, chance = actor(seen)
        actor_loss = (0.1 * chance - torch.minimum(*critics(seen, new_moves))).mean()
        for_actor.zero_grad(set_to_none=True)
        actor_loss.backward()
        for_actor.step()
        critics.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(critics.parameters()), TAU)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
