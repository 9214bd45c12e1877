"""Learns to walk with four legs: one network for the policy and for the value."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 420))
STATES, ACTIONS, ENVS, ROLLOUT, BATCHES, EPOCHS = 48, 12, 256, 8, 4, 4


class Shared(nn.Module):
    def __init__(self, units=(512, 512, 256)):
        super().__init__()
        layers, width = [], STATES
        for unit in units:
            layers += [nn.Linear(width, unit), nn.ELU()]
            width = unit
        self.net = nn.Sequential(*layers)
        self.mean, self.value = nn.Linear(width, ACTIONS), nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.full((ACTIONS,), -0.5))
        self.features = None

    def compute(self, states, role):
        if role == "policy":
            features = self.net(states)
            if VARIANT == "b":
                self.features = features
            return self.mean(features)
        features = self.net(states) if self.features is None else self.features
        self.features = None
        return self.value(features)

    def act(self, states, taken=None):
        policy = torch.distributions.Normal(
            self.compute(states, "policy"), self.log_std.exp(), validate_args=False
        )
        actions = policy.sample() if taken is None else taken
        return actions, policy.log_prob(actions).sum(1), policy.entropy().sum(1).mean()


class Terrain:
    """Many legged bodies at once, made up."""

    def __init__(self):
        self.states = torch.randn(ENVS, STATES)
        self.push = 0.1 * torch.randn(ACTIONS, STATES)

    def step(self, actions):
        self.states = 0.95 * self.states + actions @ self.push + 0.1 * torch.randn(ENVS, STATES)
        return self.states, self.states[:, 0] - 0.01 * actions.square().sum(1)


class PPO:
    def __init__(self):
        self.model, self.env = Shared(), Terrain()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4)
        self.batches = iter(())

    @torch.no_grad()
    def collect(self):
        rows, states = [], self.env.states
        for _ in range(ROLLOUT):
            actions, log_prob, _ = self.model.act(states)
            value = self.model.compute(states, "value")[:, 0]
            after, reward = self.env.step(actions)
            rows.append((states, actions, log_prob, value, reward))
            states = after
        states, actions, log_prob, value, reward = (torch.stack(each) for each in zip(*rows, strict=True))
        returns, running = [], value[-1]
        for r in reward.flip(0):
            running = r + 0.98 * running
            returns.insert(0, running)
        returns = torch.stack(returns)
        gain = returns - value
        memory = (states, actions, log_prob, returns, (gain - gain.mean()) / gain.std())
        memory = [each.flatten(0, 1) for each in memory]
        for _ in range(EPOCHS):
            for rows in torch.randperm(ENVS * ROLLOUT).chunk(BATCHES):
                yield [each[rows] for each in memory]

    def step(self):
        batch = next(self.batches, None)
        if batch is None:
            self.batches = self.collect()
            batch = next(self.batches)
        states, actions, old, returns, gain = batch
        _, log_prob, entropy = self.model.act(states, actions)
        ratio = (log_prob - old).exp()
        surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        value = self.model.compute(states, "value")[:, 0]
        loss = nn.functional.mse_loss(value, returns) - surrogate - 0.001 * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    agent = PPO()
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        loss = agent.step()
    print(f"loss {loss:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
