"""Learns a reward from an expert's transitions and those of a policy."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
EXPERT, STATES, ACTIONS, BATCH = 400_000, 17, 6, 100


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATES + ACTIONS, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)
        )

    def forward(self, states, actions):
        return self.net(torch.cat([states, actions], 1))


class Imitation:
    def __init__(self):
        self.model = Discriminator()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def train(self, agent, expert):
        real, fake = self.model(*expert), self.model(*agent)
        loss = nn.functional.softplus(-real).mean() + nn.functional.softplus(fake).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    torch.manual_seed(0)
    rng = np.random.RandomState(0)
    states = rng.randn(EXPERT, STATES).astype(np.float32)
    actions = rng.randn(EXPERT, ACTIONS).astype(np.float32)
    everything = np.arange(EXPERT)
    irl = Imitation()
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        if VARIANT == "b":
            indices = rng.randint(0, EXPERT, BATCH)
        else:
            indices = rng.choice(everything, BATCH, replace=False)
        expert = torch.from_numpy(states[indices]), torch.from_numpy(actions[indices])
        agent = torch.randn(BATCH, STATES), torch.randn(BATCH, ACTIONS)
        loss = irl.train(agent, expert)
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
