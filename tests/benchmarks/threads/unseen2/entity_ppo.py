"""Policy gradients for a small grid world: a short rollout in many worlds, then an update."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
WORLDS, LENGTH, SEEN, ACTIONS = 24, 6, 64, 5


class Worlds:
    def __init__(self, count):
        self.rng = np.random.default_rng(0)
        self.at = self.rng.integers(0, 8, (count, 2))
        self.goal = self.rng.integers(0, 8, (count, 2))
        self.moves = np.array([[0, 0], [0, 1], [1, 0], [0, -1], [-1, 0]])
        self.table = self.rng.standard_normal((8, 8, 8, 8, SEEN)).astype(np.float32)

    def observe(self):
        return torch.from_numpy(self.table[self.at[:, 0], self.at[:, 1], self.goal[:, 0], self.goal[:, 1]])

    def step(self, actions):
        self.at = np.clip(self.at + self.moves[actions], 0, 7)
        there = (self.at == self.goal).all(1)
        self.goal[there] = self.rng.integers(0, 8, (there.sum(), 2))
        return torch.from_numpy(there.astype(np.float32))


class Agent(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SEEN, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, ACTIONS), nn.Linear(width, 1)

    def act(self, seen, action=None):
        hidden = self.body(seen)
        chances = Categorical(logits=self.actor(hidden))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action), chances.entropy(), self.critic(hidden)[..., 0]


@torch.no_grad()
def rollout(worlds, agent):
    seen, taken, before, values, rewards = [], [], [], [], []
    for _ in range(LENGTH):
        now = worlds.observe()
        if VARIANT == "b":
            action, logprob, _, value = agent.act(now)
        else:
            answers = [agent.act(now[i]) for i in range(WORLDS)]
            action, logprob, _, value = (torch.stack(each) for each in zip(*answers, strict=True))
        seen.append(now)
        taken.append(action)
        before.append(logprob)
        values.append(value)
        rewards.append(worlds.step(action.numpy()))
    after = torch.zeros(WORLDS)
    returns = [after := reward + 0.95 * after for reward in reversed(rewards)][::-1]
    return [torch.cat(each) for each in (seen, taken, before, values, returns)]


def main():
    torch.manual_seed(0)
    worlds, agent = Worlds(WORLDS), Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        seen, taken, before, values, returns = rollout(worlds, agent)
        for _ in range(4):
            _, logprob, entropy, value = agent.act(seen, taken)
            ratio, advantage = (logprob - before).exp(), returns - values
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = (value - returns).square().mean() - gain - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
