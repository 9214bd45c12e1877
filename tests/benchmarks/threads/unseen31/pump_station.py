"""Advantage actor-critic for the pumps of a polder: keep the water level while rain comes and goes."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1100"))

HORIZON, ACTIONS = 48, 4


class Polder:
    """Levels of six ditches; action k runs k pumps on the last of them."""

    def __init__(self, generator):
        self.generator = generator
        self.reset()

    def reset(self):
        self.level = [0.5] * 6
        self.rain = 0.0
        self.minute = 0
        return self.state()

    def state(self):
        return torch.tensor(self.level + [self.rain, self.minute / HORIZON])

    def step(self, pumps):
        gust = float(torch.randn((), generator=self.generator))
        self.rain = max(0.0, 0.9 * self.rain + 0.05 * gust)
        flow = [0.3 * (a - b) for a, b in zip(self.level, self.level[1:])]
        self.level = [level + self.rain / 6 for level in self.level]
        for i, amount in enumerate(flow):
            self.level[i] -= amount
            self.level[i + 1] += amount
        self.level[-1] = max(0.0, self.level[-1] - 0.05 * pumps)
        self.minute += 1
        reward = -sum(abs(level - 0.4) for level in self.level) - 0.02 * pumps
        return self.state(), reward, self.minute == HORIZON


class ActorCritic(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor = nn.Linear(width, ACTIONS)
        self.critic = nn.Linear(width, 1)

    def forward(self, state):
        h = self.body(state)
        return F.log_softmax(self.actor(h), dim=-1), self.critic(h).squeeze(-1)


class Agent:
    def __init__(self, model, generator):
        self.model, self.generator = model, generator
        self.clear()

    def clear(self):
        self.states, self.actions, self.rewards = [], [], []
        self.log_probs, self.entropies, self.values = [], [], []

    def act(self, state):
        with torch.set_grad_enabled(VARIANT == "a"):
            logits, value = self.model(state)
        action = int(torch.multinomial(logits.detach().exp(), 1, generator=self.generator))
        if VARIANT == "a":
            self.log_probs.append(logits[action])
            self.entropies.append(-(logits.exp() * logits).sum())
            self.values.append(value)
        self.states.append(state)
        self.actions.append(action)
        return action

    def loss(self):
        returns, total = [], 0.0
        for reward in reversed(self.rewards):
            total = reward + 0.97 * total
            returns.append(total)
        returns = torch.tensor(returns[::-1])
        if VARIANT == "a":
            log_probs, entropies, values = map(torch.stack, (self.log_probs, self.entropies, self.values))
        else:
            logits, values = self.model(torch.stack(self.states))
            log_probs = logits.gather(1, torch.tensor(self.actions)[:, None]).squeeze(1)
            entropies = -(logits.exp() * logits).sum(1)
        advantages = returns - values.detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        policy = -(log_probs * advantages).mean() - 0.01 * entropies.mean()
        return policy + 0.1 * F.smooth_l1_loss(values, returns)


torch.manual_seed(71)
generator = torch.Generator().manual_seed(72)
polder = Polder(generator)
model = ActorCritic()
agent = Agent(model, generator)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        start = time.perf_counter()
    agent.clear()
    state, done = polder.reset(), False
    while not done:
        state, reward, done = polder.step(agent.act(state))
        agent.rewards.append(reward)
    loss = agent.loss()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
