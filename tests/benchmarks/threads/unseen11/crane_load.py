"""Swings loads of tower cranes to their place: PPO with a Gaussian for the six drives."""

import os
import time

import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 220))
CRANES, MOMENTS, ROUNDS = 32, 8, 4
JOINTS = 6


class Cranes:
    """Many cranes at once: joints with inertia that shall reach given angles without overshooting."""

    def __init__(self, seed=19):
        self.g = torch.Generator().manual_seed(seed)
        self.angle = torch.randn(CRANES, JOINTS, generator=self.g)
        self.speed = torch.zeros(CRANES, JOINTS)
        self.goal = torch.randn(CRANES, JOINTS, generator=self.g)
        self.age = torch.randint(0, 60, (CRANES,), generator=self.g)

    def view(self):
        return torch.cat([self.angle, self.speed, self.goal - self.angle], 1)

    def step(self, drive):
        self.speed = 0.9 * self.speed + 0.1 * drive.clamp(-2, 2) - 0.02 * self.angle
        self.angle = self.angle + 0.2 * self.speed
        reward = -(self.goal - self.angle).abs().mean(1) - 0.1 * self.speed.square().mean(1)
        self.age += 1
        over = self.age >= 60
        number = int(over.sum())
        if number:
            self.angle[over] = torch.randn(number, JOINTS, generator=self.g)
            self.speed[over] = 0
            self.goal[over] = torch.randn(number, JOINTS, generator=self.g)
            self.age[over] = 0
        return reward


class Policy(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3 * JOINTS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.drive, self.value = nn.Linear(width, JOINTS), nn.Linear(width, 1)
        self.log_scale = nn.Parameter(torch.full((JOINTS,), -0.5))

    def forward(self, view):
        x = self.body(view)
        mean, scale = self.drive(x), self.log_scale.exp()
        if VARIANT == "a":
            covariance = torch.diag_embed(scale.square().expand_as(mean))
            choice = MultivariateNormal(mean, covariance, validate_args=False)
        else:
            choice = Independent(
                Normal(mean, scale.expand_as(mean), validate_args=False), 1, validate_args=False
            )
        return choice, self.value(x)[:, 0]


def main():
    torch.manual_seed(19)
    torch.set_num_threads(1)
    cranes, policy = Cranes(), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        views, drives, chances, rewards = [], [], [], []
        with torch.no_grad():
            for _ in range(MOMENTS):
                view = cranes.view()
                choice, _ = policy(view)
                drive = choice.sample()
                views.append(view)
                drives.append(drive)
                chances.append(choice.log_prob(drive))
                rewards.append(cranes.step(drive))
            later = policy(cranes.view())[1]
            returns = []
            for reward in reversed(rewards):
                later = reward + 0.95 * later
                returns.insert(0, later)
        view, drive, before, wanted = (torch.cat(x) for x in (views, drives, chances, returns))
        for _ in range(ROUNDS):
            choice, value = policy(view)
            gain = (wanted - value).detach()
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            ratio = (choice.log_prob(drive) - before).exp()
            worth = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = (wanted - value).square().mean() - worth - 0.001 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, reward {torch.stack(rewards).mean():.3f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
