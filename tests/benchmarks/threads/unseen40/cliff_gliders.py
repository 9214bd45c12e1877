"""Gliders along a cliff learn to stay in the updraught: rollouts, then clipped policy updates."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
GLIDERS, TICKS = 16, 16
VIEW, ACTIONS = 24, 5
EPOCHS, MINIBATCH = 2, 128
GAMMA, CLIP = 0.97, 0.2


class CliffWind:
    """A field of updraughts that drifts; each glider sees a window of it."""

    def __init__(self, gliders):
        self.rng = np.random.default_rng(12)
        self.field = self.rng.random((96, 96)).astype(np.float32)
        self.place = self.rng.integers(0, 96, (gliders, 2))
        self.moves = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
        self.window = np.arange(VIEW) - VIEW // 2

    def views(self):
        rows = (self.place[:, 0, None] + self.window) % 96
        cols = (self.place[:, 1, None] + self.window) % 96
        return self.field[rows[:, :, None], cols[:, None, :]]

    def step(self, actions):
        self.place = (self.place + self.moves[actions]) % 96
        reward = self.field[self.place[:, 0], self.place[:, 1]] - 0.5
        return self.views(), reward.astype(np.float32)


class GliderRecord:
    """What the gliders saw, did and earned in one rollout."""

    def __init__(self):
        self.views, self.actions, self.logps, self.rewards, self.values = [], [], [], [], []
        if VARIANT != "a":
            self.at = 0
            self.views = np.empty((TICKS, GLIDERS, VIEW, VIEW), np.float32)
            self.actions = np.empty((TICKS, GLIDERS), np.int64)
            self.logps, self.rewards, self.values = np.empty((3, TICKS, GLIDERS), np.float32)

    def add(self, *row):
        columns = (self.views, self.actions, self.logps, self.rewards, self.values)
        if VARIANT == "a":
            for column, entry in zip(columns, row):
                column.append(entry)
        else:
            for column, entry in zip(columns, row):
                column[self.at] = entry
            self.at += 1

    def tensors(self):
        columns = (self.views, self.actions, self.logps, self.rewards, self.values)
        if VARIANT == "a":
            columns = [np.array(column) for column in columns]
        return [torch.from_numpy(column) for column in columns]


class GliderPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(1, 24, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48 * 8 * 8, 128),
            nn.ReLU(),
        )
        self.act = nn.Linear(128, ACTIONS)
        self.worth = nn.Linear(128, 1)

    def forward(self, views):
        seen = self.eyes(views[:, None])
        return self.act(seen).log_softmax(-1), self.worth(seen).squeeze(-1)


def main():
    torch.manual_seed(0)
    wind, policy = CliffWind(GLIDERS), GliderPolicy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    views = wind.views()
    warm = min(10, STEPS // 2)
    total, begin = 0.0, time.perf_counter()
    for step in range(STEPS):
        record = GliderRecord()
        for _ in range(TICKS):
            with torch.no_grad():
                logp, value = policy(torch.from_numpy(views))
                action = (logp - torch.empty_like(logp).exponential_().log()).argmax(-1)
            chosen = logp.gather(1, action[:, None]).squeeze(1)
            after, reward = wind.step(action.numpy())
            record.add(views, action.numpy(), chosen.numpy(), reward, value.numpy())
            views = after
        seen, acts, logps, rewards, values = record.tensors()
        returns, running = torch.empty_like(rewards), values[-1]
        for tick in reversed(range(TICKS)):
            running = rewards[tick] + GAMMA * running
            returns[tick] = running
        seen, acts, logps, returns, values = (x.flatten(0, 1) for x in (seen, acts, logps, returns, values))
        gain = returns - values
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        for _ in range(EPOCHS):
            for rows in torch.randperm(TICKS * GLIDERS).split(MINIBATCH):
                logp, worth = policy(seen[rows])
                ratio = (logp.gather(1, acts[rows, None]).squeeze(1) - logps[rows]).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                loss = (
                    -torch.min(ratio * gain[rows], clipped * gain[rows]).mean()
                    + 0.5 * F.mse_loss(worth, returns[rows])
                    + 0.01 * (logp.exp() * logp).sum(-1).mean()
                )
                opt.zero_grad()
                loss.backward()
                opt.step()
        total += loss.item()
        if step + 1 == warm:
            begin = time.perf_counter()
    spent = time.perf_counter() - begin
    print(f"loss {total / STEPS:.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
