"""REINFORCE for walkers that look for a lantern on a plane; one update after every round of episodes."""

import os
import time

import numpy as np
import torch
import torch.nn as nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "300"))
WARM = min(10, STEPS // 2)
WALKERS = 1
PLAYS = 4
LENGTH = 36
RAYS = 20
WIDTH = 48
GAMMA = 0.97
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], dtype=np.float32) * 0.2


class LanternField:
    def __init__(self, rng):
        self.rng = rng
        angle = np.linspace(0, 2 * np.pi, RAYS, endpoint=False)
        self.rays = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)

    def reset(self):
        self.place = self.rng.uniform(-2, 2, (WALKERS, 2)).astype(np.float32)
        self.lantern = self.rng.uniform(-2, 2, (WALKERS, 2)).astype(np.float32)
        return self.look()

    def look(self):
        return np.concatenate([(self.lantern - self.place) @ self.rays.T, self.place, self.lantern], 1)

    def step(self, action):
        before = np.linalg.norm(self.lantern - self.place, axis=1)
        self.place = self.place + MOVES[action]
        after = np.linalg.norm(self.lantern - self.place, axis=1)
        return self.look(), before - after - 0.01


class WalkerPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(RAYS + 4, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, len(MOVES)),
        )

    def forward(self, view):
        return self.net(view)


class Reinforce:
    def __init__(self, policy, field):
        self.policy, self.field = policy, field
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
        self.batch_states = []
        self.batch_actions = []
        self.batch_qvals = []

    @torch.no_grad()
    def act(self, view):
        odds = self.policy(torch.from_numpy(view)).softmax(1)
        return torch.multinomial(odds, 1).squeeze(1).numpy()

    def discount(self, rewards):
        total, out = np.zeros(WALKERS), []
        for reward in reversed(rewards):
            total = reward + GAMMA * total
            out.append(total)
        return out[::-1]

    def play(self, keep=True):
        view, rewards = self.field.reset(), []
        for _ in range(LENGTH):
            action = self.act(view)
            if keep:
                self.batch_states.append(view)
                self.batch_actions.append(action)
            view, reward = self.field.step(action)
            rewards.append(reward)
        if keep:
            self.batch_qvals.extend(self.discount(rewards))
        return float(np.sum(rewards)) / WALKERS

    def train_batch(self):
        states = torch.from_numpy(np.concatenate(self.batch_states))
        actions = torch.from_numpy(np.concatenate(self.batch_actions))
        qvals = torch.from_numpy(np.concatenate(self.batch_qvals)).float()
        if VARIANT != "a":
            self.batch_states.clear()
            self.batch_actions.clear()
            self.batch_qvals.clear()
        return states, actions, (qvals - qvals.mean()) / (qvals.std() + 1e-6)

    def update(self):
        states, actions, qvals = self.train_batch()
        chosen = self.policy(states).log_softmax(1).gather(1, actions[:, None]).squeeze(1)
        loss = -(qvals * chosen).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    torch.manual_seed(0)
    agent = Reinforce(WalkerPolicy(), LanternField(np.random.default_rng(0)))
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        for _ in range(PLAYS):
            agent.play()
        loss = agent.update()
        gained = sum(agent.play(keep=False) for _ in range(PLAYS)) / PLAYS
        if step % 100 == 99:
            print(f"round {step + 1}: {gained:.3f} gained")
    spent = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{spent / (STEPS - WARM) * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
