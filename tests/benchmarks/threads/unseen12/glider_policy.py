"""A glider learns to circle in thermals: a policy by natural gradients in a trust region."""

import os
import time

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
GLIDERS = int(os.environ.get("GLIDERS", 1024))
HORIZON = int(os.environ.get("HORIZON", 24))
WIDTH = int(os.environ.get("WIDTH", 512))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def net(outputs):
    layers = [nn.Linear(12, WIDTH), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, outputs))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.log_std = net(4), nn.Parameter(torch.full((4,), -0.5))

    def forward(self, states):
        return Normal(self.mean(states), self.log_std.exp(), validate_args=False)


def fly(policy, drift, pull):
    """All gliders at once; their air is a linear system with noise."""
    states, actions, rewards = [], [], []
    state = torch.randn(GLIDERS, 12, device=device)
    with torch.no_grad():
        for _ in range(HORIZON):
            action = policy(state).sample()
            states.append(state)
            actions.append(action)
            state = torch.tanh(state @ drift + action @ pull + 0.1 * torch.randn_like(state))
            rewards.append(-(state[:, 0] - 0.5).square() - 0.01 * action.square().sum(-1))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    return torch.stack(states).flatten(0, 1), torch.stack(actions).flatten(0, 1), returns.flatten()


def flatten(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


class TrustRegion:
    def __init__(self, policy, radius=0.01, damping=0.1, rounds=10):
        self.policy, self.radius, self.damping, self.rounds = policy, radius, damping, rounds
        self.weights = list(policy.parameters())

    def divergence(self, states):
        now = self.policy(states)
        old = Normal(now.mean.detach(), now.stddev.detach(), validate_args=False)
        return kl_divergence(old, now).sum(-1).mean()

    def slope(self, states):
        kl = self.divergence(states)
        return flatten(torch.autograd.grad(kl, self.weights, create_graph=True))

    def curvature(self, states):
        kept = self.slope(states) if VARIANT == "b" else None

        def product(vector):
            slope = self.slope(states) if kept is None else kept
            again = torch.autograd.grad(slope @ vector, self.weights, retain_graph=kept is not None)
            return flatten(again) + self.damping * vector

        return product

    def conjugate(self, product, target):
        x, r, p = torch.zeros_like(target), target.clone(), target.clone()
        square = r @ r
        for _ in range(self.rounds):
            z = product(p)
            alpha = square / (p @ z)
            x, r = x + alpha * p, r - alpha * z
            new = r @ r
            p, square = r + new / square * p, new
        return x

    def step(self, states, actions, advantages):
        spread = self.policy(states)
        gain = (spread.log_prob(actions).sum(-1) * advantages).mean()
        gradient = flatten(torch.autograd.grad(gain, self.weights))
        product = self.curvature(states)
        way = self.conjugate(product, gradient)
        length = (2 * self.radius / (way @ product(way)).clamp(min=1e-8)).sqrt()
        with torch.no_grad():
            for w, change in zip(self.weights, way.split([w.numel() for w in self.weights]), strict=True):
                w += length * change.view_as(w)
        return gain.detach()


def main():
    torch.manual_seed(17)
    policy, value = Policy().to(device), net(1).to(device)
    region = TrustRegion(policy)
    optimizer = torch.optim.Adam(value.parameters(), lr=1e-3, fused=device.type == "cuda")
    drift, pull = 0.3 * torch.randn(12, 12, device=device), 0.3 * torch.randn(4, 12, device=device)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        states, actions, returns = fly(policy, drift, pull)
        loss = (value(states)[:, 0] - returns).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            advantages = returns - value(states)[:, 0]
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        region.step(states, actions, advantages)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, return {returns[:GLIDERS].mean().item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
