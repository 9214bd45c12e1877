"""Swings up four pendulums with proximal policy optimisation."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1000))
WORLDS = int(os.environ.get("WORLDS", 4))
ROLLOUT = int(os.environ.get("ROLLOUT", 64))
EPOCHS = int(os.environ.get("EPOCHS", 4))
BATCH = int(os.environ.get("BATCH", 64))
WIDTH = int(os.environ.get("WIDTH", 64))
GAMMA, LAMBDA, CLIP = 0.95, 0.95, 0.2
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Pendulums:
    """Pendulums with a motor too weak to lift them at once; each starts anew after 200 pushes."""

    def __init__(self, number, seed):
        self.rng = np.random.default_rng(seed)
        self.number, self.age = number, self.rng.integers(0, 200, number)
        self.angle, self.speed = self.rng.uniform(-np.pi, np.pi, number), np.zeros(number)

    def seen(self):
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.speed / 8], 1).astype(np.float32)

    def step(self, push):
        push = 2 * np.clip(push, -1, 1)
        turned = (self.angle + np.pi) % (2 * np.pi) - np.pi
        cost = turned**2 + 0.1 * self.speed**2 + 0.001 * push**2
        self.speed = np.clip(self.speed + 0.05 * (15 * np.sin(self.angle) + 3 * push), -8, 8)
        self.angle = self.angle + 0.05 * self.speed
        self.age += 1
        done = self.age >= 200
        if done.any():
            self.age[done], self.speed[done] = 0, 0
            self.angle[done] = self.rng.uniform(-np.pi, np.pi, done.sum())
        return self.seen(), (-cost / 8).astype(np.float32), done.astype(np.float32)


def mlp(outputs):
    layers = [nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs)]
    return nn.Sequential(*layers)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = mlp(1), mlp(1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, seen):
        choice = Normal(self.actor(seen)[:, 0], self.log_std.exp(), validate_args=False)
        return choice, self.critic(seen)[:, 0]


def collect(policy, worlds, place):
    """Lets the policy act ROLLOUT times in all worlds and sums up what was gained."""
    kept = []
    for _ in range(ROLLOUT):
        seen = torch.as_tensor(worlds.seen(), device=place)
        with torch.no_grad():
            choice, value = policy(seen)
            push = choice.sample()
            answer = torch.stack([push, choice.log_prob(push), value]).cpu().numpy()
        _, reward, done = worlds.step(answer[0])
        kept.append((seen, answer, reward, done))
    with torch.no_grad():
        value = policy(torch.as_tensor(worlds.seen(), device=place))[1].cpu().numpy()
    gain, gains = 0.0, []
    for _, answer, reward, done in reversed(kept):
        surprise = reward + GAMMA * (1 - done) * value - answer[2]
        gain = surprise + GAMMA * LAMBDA * (1 - done) * gain
        gains.append(gain)
        value = answer[2]
    numbers = np.concatenate([np.stack([k[1] for k in kept]), np.stack(gains[::-1])[:, None]], 1)
    numbers = torch.as_tensor(numbers.astype(np.float32), device=place)
    push, before, value, gain = numbers.transpose(0, 1).flatten(1)
    return torch.cat([k[0] for k in kept]), push, before, value + gain, gain


def main():
    torch.set_num_threads(1)
    torch.manual_seed(8)
    place = device if VARIANT == "a" else torch.device("cpu")
    worlds = Pendulums(WORLDS, 8)
    policy = Policy().to(place)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, eps=1e-5, fused=True)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        seen, push, before, returns, gain = collect(policy, worlds, place)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(push), device=place).split(BATCH):
                choice, value = policy(seen[rows])
                ratio = (choice.log_prob(push[rows]) - before[rows]).exp()
                part = gain[rows]
                part = (part - part.mean()) / (part.std() + 1e-8)
                score = torch.min(ratio * part, ratio.clamp(1 - CLIP, 1 + CLIP) * part).mean()
                loss = 0.5 * (value - returns[rows]).square().mean() - score
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
