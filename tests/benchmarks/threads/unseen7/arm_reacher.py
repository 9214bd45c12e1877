"""An arm that learns to reach: off-policy actor and critics, goals relabelled in hindsight."""

import copy
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
BATCH = int(os.environ.get("BATCH", 4096))
WIDTH = int(os.environ.get("WIDTH", 64))
EPISODES, HORIZON = 400, 100
SEEN, GOAL, MOVE, RELABELLED = 10, 3, 4, 0.8


class GoalBuffer:
    """Paths of the arm; a part of the goals drawn is replaced by what was reached later."""

    def __init__(self):
        g = np.random.default_rng(2)
        moves = g.uniform(-1, 1, (EPISODES, HORIZON, MOVE)).astype(np.float32)
        drift = np.cumsum(moves[..., :GOAL] * 0.05, axis=1)
        reached = np.concatenate([np.zeros((EPISODES, 1, GOAL), np.float32), drift], 1)
        noise = g.normal(size=(EPISODES, HORIZON + 1, SEEN - GOAL)).astype(np.float32)
        seen = np.concatenate([reached, noise], -1).astype(np.float32)
        self.moves = moves.reshape(-1, MOVE)
        self.seen, self.after = seen[:, :-1].reshape(-1, SEEN), seen[:, 1:].reshape(-1, SEEN)
        self.reached = reached[:, 1:].reshape(-1, GOAL).astype(np.float32)
        wishes = g.uniform(-1, 1, (EPISODES, 1, GOAL)).astype(np.float32)
        self.goals = np.repeat(wishes, HORIZON, 1).reshape(-1, GOAL)
        ends = np.repeat(np.arange(1, EPISODES + 1) * HORIZON, HORIZON)
        self.ends = ends
        self.later = [np.arange(i, end) for i, end in enumerate(ends)]
        self.random = g

    def draw_later(self, indices):
        if VARIANT == "a":
            chosen = []
            for i in indices:
                possible = self.later[i]
                options = len(possible)
                chosen.append(possible[int(np.random.randint(0, options))])
            return np.array(chosen)
        options = self.ends[indices] - indices
        return indices + (np.random.random(len(indices)) * options).astype(np.int64)

    def sample(self, count):
        indices = self.random.integers(0, len(self.moves), count)
        goals = self.goals[indices]
        number = int(RELABELLED * count)
        goals[-number:] = self.reached[self.draw_later(indices[-number:])]
        near = np.linalg.norm(self.reached[indices] - goals, axis=1) < 0.1
        rewards = near.astype(np.float32) - 1
        batch = self.seen[indices], goals, self.moves[indices], rewards, self.after[indices]
        return [torch.from_numpy(x) for x in batch]


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
    )  # fmt: skip


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = mlp(SEEN + GOAL, MOVE)
        self.critics = nn.ModuleList([mlp(SEEN + GOAL + MOVE, 1) for _ in range(2)])

    def act(self, state):
        return torch.tanh(self.actor(state))

    def value(self, state, move):
        x = torch.cat([state, move], 1)
        return torch.cat([critic(x) for critic in self.critics], 1)


def update(agent, target, actor_optimizer, critic_optimizer, batch):
    seen, goals, moves, rewards, after = batch
    state, following = torch.cat([seen, goals], 1), torch.cat([after, goals], 1)
    with torch.no_grad():
        best = target.value(following, target.act(following)).amin(1)
        wanted = (rewards + 0.98 * best).clamp(-50, 0)
    critic_loss = F.mse_loss(agent.value(state, moves), wanted[:, None].expand(-1, 2))
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    move = agent.act(state)
    actor_loss = move.square().mean() - agent.value(state, move)[:, 0].mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    with torch.no_grad():
        for old, new in zip(target.parameters(), agent.parameters()):
            old.lerp_(new, 0.01)
    return critic_loss.detach()


def main():
    torch.manual_seed(91)
    np.random.seed(91)
    agent, buffer = Agent(), GoalBuffer()
    target = copy.deepcopy(agent).requires_grad_(False)
    actor_optimizer = torch.optim.Adam(agent.actor.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(agent.critics.parameters(), lr=1e-3)
    warm, losses = min(20, STEPS // 2), []
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        losses.append(update(agent, target, actor_optimizer, critic_optimizer, buffer.sample(BATCH)))
    elapsed = time.perf_counter() - start
    print(f"loss {torch.stack(losses).mean().item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
