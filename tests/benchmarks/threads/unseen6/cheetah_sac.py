"""Soft actor-critic for a running robot, learning from a buffer of what it did."""

import itertools
import os
import time
from copy import deepcopy

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2000))
BATCH, OBSERVED, ACTIONS, HIDDEN = 256, 17, 6, 384
GAMMA, POLYAK, ALPHA = 0.99, 0.995, 0.2


def mlp(*sizes):
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(OBSERVED, HIDDEN, HIDDEN)
        self.mean, self.log_std = nn.Linear(HIDDEN, ACTIONS), nn.Linear(HIDDEN, ACTIONS)

    def forward(self, obs):
        x = F.relu(self.net(obs))
        chosen = Normal(self.mean(x), self.log_std(x).clamp(-20, 2).exp(), validate_args=False)
        raw = chosen.rsample()
        squash = 2 * (0.6931 - raw - F.softplus(-2 * raw))
        return raw.tanh(), (chosen.log_prob(raw) - squash).sum(-1)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = Actor()
        self.q1 = mlp(OBSERVED + ACTIONS, HIDDEN, HIDDEN, 1)
        self.q2 = mlp(OBSERVED + ACTIONS, HIDDEN, HIDDEN, 1)

    def q(self, obs, action):
        both = torch.cat([obs, action], -1)
        return self.q1(both).squeeze(-1), self.q2(both).squeeze(-1)


class ReplayBuffer:
    def __init__(self, size=100_000):
        self.obs, self.obs2 = torch.randn(size, OBSERVED), torch.randn(size, OBSERVED)
        self.act, self.rew = torch.rand(size, ACTIONS) * 2 - 1, torch.randn(size)
        self.done = (torch.rand(size) < 0.01).float()

    def sample_batch(self):
        rows = torch.randint(0, len(self.rew), (BATCH,))
        return [column[rows] for column in (self.obs, self.act, self.rew, self.obs2, self.done)]


class SAC:
    def __init__(self):
        self.ac = ActorCritic()
        self.targ = deepcopy(self.ac)
        self.q_params = list(itertools.chain(self.ac.q1.parameters(), self.ac.q2.parameters()))
        self.pi_optimizer = torch.optim.Adam(self.ac.pi.parameters(), lr=1e-3)
        self.q_optimizer = torch.optim.Adam(self.q_params, lr=1e-3)

    def backup(self, rew, obs2, done):
        act2, logp = self.ac.pi(obs2)
        value = torch.min(*self.targ.q(obs2, act2))
        return rew + GAMMA * (1 - done) * (value - ALPHA * logp)

    def update(self, obs, act, rew, obs2, done):
        if VARIANT == "a":
            backup = self.backup(rew, obs2, done).detach()
        else:
            with torch.no_grad():
                backup = self.backup(rew, obs2, done)
        q1, q2 = self.ac.q(obs, act)
        loss_q = (q1 - backup).square().mean() + (q2 - backup).square().mean()
        self.q_optimizer.zero_grad()
        loss_q.backward()
        self.q_optimizer.step()

        for p in self.q_params:
            p.requires_grad = False
        fresh, logp = self.ac.pi(obs)
        loss_pi = (ALPHA * logp - torch.min(*self.ac.q(obs, fresh))).mean()
        self.pi_optimizer.zero_grad()
        loss_pi.backward()
        self.pi_optimizer.step()
        for p in self.q_params:
            p.requires_grad = True

        with torch.no_grad():
            for p, target in zip(self.ac.parameters(), self.targ.parameters(), strict=True):
                target.mul_(POLYAK).add_((1 - POLYAK) * p)
        return loss_q.item() + loss_pi.item()


def main():
    torch.manual_seed(0)
    agent, buffer = SAC(), ReplayBuffer()
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        loss = agent.update(*buffer.sample_batch())
    print(f"loss {loss:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
