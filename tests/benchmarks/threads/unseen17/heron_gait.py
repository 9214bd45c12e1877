"""A wading robot that learns to walk like a heron: policy, critic, and a judge of its movements."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
ROBOTS = int(os.environ.get("ROBOTS", 4096))
TICKS = int(os.environ.get("TICKS", 24))
PARTS = int(os.environ.get("PARTS", 4))
WIDTH = int(os.environ.get("WIDTH", 1024))
SENSES, JOINTS, MOVES = 160, 24, 128
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Scale:
    """Brings what comes to mean zero and spread one, by what came so far."""

    def __init__(self, width):
        zeros = np.zeros(width, np.float32) if VARIANT == "a" else torch.zeros(width, device=device)
        self.mean, self.spread, self.count = zeros, zeros + 1, 1e-4

    def __call__(self, x, limit=10.0):
        mean = torch.as_tensor(self.mean, device=device)
        spread = torch.as_tensor(self.spread, device=device)
        return ((x - mean) / torch.sqrt(spread + 1e-4)).clamp(-limit, limit)

    def update(self, x):
        x = x.detach()
        if VARIANT == "a":
            x = x.cpu().numpy()
        rows, mean = len(x), x.mean(0)
        spread = ((x - mean) ** 2).mean(0)
        gap, total = mean - self.mean, self.count + rows
        both = self.spread * self.count + spread * rows + gap**2 * (self.count * rows / total)
        self.mean = self.mean + gap * (rows / total)
        self.spread, self.count = both / total, total


def net(before, after):
    half = WIDTH // 2
    return nn.Sequential(
        nn.Linear(before, WIDTH), nn.ELU(), nn.Linear(WIDTH, half), nn.ELU(), nn.Linear(half, after)
    )


class Learner:
    def __init__(self):
        self.policy, self.critic = net(SENSES, JOINTS).to(device), net(SENSES, 1).to(device)
        self.judge, self.scale = net(MOVES, 1).to(device), Scale(MOVES)
        self.noise = nn.Parameter(torch.zeros(JOINTS, device=device))
        nets = nn.ModuleList([self.policy, self.critic, self.judge])
        self.weights = [self.noise, *nets.parameters()]
        self.optimizer = torch.optim.Adam(self.weights, lr=1e-4, fused=device.type == "cuda")

    def logps(self, senses, actions):
        far = (actions - self.policy(senses)) / self.noise.exp()
        return (-0.5 * far.square() - self.noise).sum(1)

    def likeness(self, ours, herons):
        """The judge tells its own movements from those of herons, and is not too steep."""
        herons = self.scale(herons).requires_grad_()
        of_ours, of_herons = self.judge(self.scale(ours)), self.judge(herons)
        (slope,) = torch.autograd.grad(of_herons.sum(), herons, create_graph=True)
        loss = F.mse_loss(of_herons, torch.ones_like(of_herons))
        loss = loss + F.mse_loss(of_ours, -torch.ones_like(of_ours))
        return loss + 5 * slope.square().sum(1).mean()

    def update(self, senses, actions, old, advantages, returns, ours, herons):
        ratio = torch.exp(self.logps(senses, actions) - old)
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        value = F.mse_loss(self.critic(senses)[:, 0], returns)
        loss = value - gain - 0.005 * self.noise.sum() + self.likeness(ours, herons)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.scale.update(ours)
        self.scale.update(herons)
        return loss.detach()


def walk(learner, rows):
    """What the robots sensed, did and got, and movements of theirs and of herons."""
    senses = torch.randn(rows, SENSES, device=device)
    actions = torch.randn(rows, JOINTS, device=device)
    with torch.no_grad():
        old = learner.logps(senses, actions)
    returns, advantages = (torch.randn(rows, device=device) for _ in range(2))
    ours = 2 * torch.randn(rows, MOVES, device=device) + 1
    herons = torch.randn(rows, MOVES, device=device).cumsum(1) / 4
    return senses, actions, old, advantages, returns, ours, herons


def main():
    torch.manual_seed(37)
    learner = Learner()
    rollout = walk(learner, ROBOTS * TICKS)
    rows, warm = ROBOTS * TICKS // PARTS, min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        part = slice(step % PARTS * rows, (step % PARTS + 1) * rows)
        loss = learner.update(*(x[part] for x in rollout))
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
