"""REINFORCE: episodes of a pendulum written in plain Python, then one policy update per batch of episodes.

Planted: host-bound (the simulator; there is no loader to wait for). --fixed: one vectorised simulator.
"""

import argparse
import math
import time

import torch
from torch.distributions import Categorical

TRUTH = "host-bound"
ACCEPT = ("input-bound",)  # who calls the simulator "input" is not wrong

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
EPISODES, LENGTH, SUBSTEPS = 32, 6, 300

policy = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)


class Pendulum:
    def __init__(self, k):
        self.theta, self.speed = 0.1 * k, 0.0

    def observe(self):
        return [math.cos(self.theta), math.sin(self.theta), self.speed]

    def act(self, action):
        for _ in range(SUBSTEPS):  # small steps, for accuracy
            self.speed += 0.05 / SUBSTEPS * (9.8 * math.sin(self.theta) + (action - 1) * 2 - 0.1 * self.speed)
            self.theta += 0.05 / SUBSTEPS * self.speed
        return -(self.theta**2) - 0.1 * self.speed**2


def rollout_python():
    envs = [Pendulum(k) for k in range(EPISODES)]
    log_probs, rewards = [], []
    for _ in range(LENGTH):
        obs = torch.tensor([env.observe() for env in envs], device=device)
        dist = Categorical(logits=policy(obs))
        actions = dist.sample()
        log_probs.append(dist.log_prob(actions))
        rewards.append(
            torch.tensor([env.act(a) for env, a in zip(envs, actions.tolist(), strict=True)], device=device)
        )
    return torch.stack(log_probs), torch.stack(rewards)


def rollout_tensor():
    theta = 0.1 * torch.arange(EPISODES, device=device, dtype=torch.float32)
    speed = torch.zeros_like(theta)
    log_probs, rewards = [], []
    for _ in range(LENGTH):
        dist = Categorical(logits=policy(torch.stack([theta.cos(), theta.sin(), speed], 1)))
        actions = dist.sample()
        log_probs.append(dist.log_prob(actions))
        with torch.no_grad():
            speed = speed + 0.05 * (9.8 * theta.sin() + (actions - 1) * 2 - 0.1 * speed)
            theta = theta + 0.05 * speed
        rewards.append(-(theta**2) - 0.1 * speed**2)
    return torch.stack(log_probs), torch.stack(rewards)


rollout = rollout_tensor if args.fixed else rollout_python
stamps = []
for update in range(120):
    stamps.append(time.perf_counter())
    log_probs, rewards = rollout()
    returns = rewards.flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(log_probs * returns).sum(0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 20 == 0:
        print(f"update {update} return {rewards.sum(0).mean().item():.2f}")
print(f"step_ms={(stamps[-1] - stamps[20]) * 1000 / (len(stamps) - 21):.3f}")
