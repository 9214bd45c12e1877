"""Steering a toy kart by its camera: a deep Q-network that learns from a memory of past races."""

import copy
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 160))
BATCH = int(os.environ.get("BATCH", 768))
WIDTH = int(os.environ.get("WIDTH", 16))
MEMORY = int(os.environ.get("MEMORY", 20_000))
SIDE, HISTORY, ACTIONS = 96, 4, 9
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.relu(self.first(F.relu(x))))


class KartNet(nn.Module):
    def __init__(self):
        super().__init__()
        stages, before = [], HISTORY
        for after in (WIDTH, 2 * WIDTH, 2 * WIDTH):
            stages += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            stages += [Residual(after), Residual(after)]
            before = after
        self.stages = nn.Sequential(*stages, nn.ReLU(), nn.Flatten())
        self.hidden = nn.Linear(before * (SIDE // 8) ** 2, 256)
        self.value, self.advantage = nn.Linear(256, 1), nn.Linear(256, ACTIONS)

    def forward(self, x):
        x = F.relu(self.hidden(self.stages(x)))
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


class RaceMemory:
    """Frames as they came from the camera, in order, with what was done and what it brought."""

    def __init__(self, size, seed=7):
        self.rng = np.random.default_rng(seed)
        track = self.rng.integers(0, 256, (256, SIDE, SIDE), dtype=np.uint8)
        self.frames = track[np.arange(size) % 256]
        self.frames[:, : SIDE // 2] //= 2
        self.actions = self.rng.integers(0, ACTIONS, size)
        self.rewards = (self.actions == np.arange(size) % ACTIONS).astype(np.float32)

    def pictures(self, first):
        stacked = torch.from_numpy(self.frames[first[:, None] + np.arange(HISTORY)])
        if VARIANT == "b":
            return stacked.to(device=device).to(dtype=torch.float32).div_(255)
        return stacked.to(device=device, dtype=torch.float32).div_(255)

    def sample(self, count):
        first = self.rng.integers(0, len(self.frames) - HISTORY - 1, count)
        state, following = self.pictures(first), self.pictures(first + 1)
        now = first + HISTORY - 1
        actions, rewards = torch.from_numpy(self.actions[now]), torch.from_numpy(self.rewards[now])
        return state, actions.to(device), rewards.to(device), following


def main():
    torch.manual_seed(31)
    memory = RaceMemory(MEMORY)
    online = KartNet().to(device)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        state, actions, rewards, following = memory.sample(BATCH)
        with torch.no_grad():
            best = online(following).argmax(1, keepdim=True)
            wanted = rewards + 0.99 * target(following).gather(1, best)[:, 0]
        loss = F.smooth_l1_loss(online(state).gather(1, actions[:, None])[:, 0], wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            target.load_state_dict(online.state_dict())
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
