"""Trains a valve policy for rows of water tanks by roll-outs through a differentiable tank model."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 700))
ROWS = int(os.environ.get("ROWS", 512))
TANKS = int(os.environ.get("TANKS", 16))
SETTLE = int(os.environ.get("SETTLE", 100))
HORIZON = int(os.environ.get("HORIZON", 24))


class TankRow(nn.Module):
    """Tanks in a row; each drains into the next one, the first is fed by a pump."""

    def __init__(self, tanks, dt=0.05):
        super().__init__()
        self.dt = dt
        self.register_buffer("area", 1.0 + 0.5 * torch.rand(tanks))
        self.register_buffer("bore", 0.2 + 0.1 * torch.rand(tanks))

    def forward(self, level, valve, inflow):
        head = level.clamp(min=1e-3).sqrt()
        drain = head * self.bore * valve
        feed = drain.roll(1, dims=1)
        feed = torch.cat((inflow, feed.narrow(1, 1, feed.shape[1] - 1)), dim=1)
        change = (feed - drain) / self.area
        level = level + change * self.dt
        return torch.clamp(level, 0.0, 4.0)


class ValvePolicy(nn.Module):
    def __init__(self, tanks, width=128):
        super().__init__()
        self.inp = nn.Linear(2 * tanks, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, tanks)

    def forward(self, level, goal):
        x = torch.cat((level, goal - level), dim=1)
        x = torch.tanh(self.inp(x))
        x = torch.tanh(self.mid(x))
        return torch.sigmoid(self.out(x))


def build():
    row = TankRow(TANKS)
    policy = ValvePolicy(TANKS)
    level = 1.0 + torch.rand(ROWS, TANKS)
    return row, policy, level


@torch.no_grad()
def settle(row, level):
    """Lets the rows run with drifting pumps and valves, so that training starts from lived-in states."""
    pump = torch.rand_like(level.narrow(1, 0, 1))
    valve = torch.rand_like(level)
    for _ in range(SETTLE):
        pump = (0.95 * pump + 0.05 * torch.rand_like(pump)).clamp(0.0, 1.0)
        valve = (0.9 * valve + 0.1 * torch.rand_like(valve)).clamp(0.0, 1.0)
        level = row(level, valve, pump)
    return level, pump


def rollout(row, policy, level, pump, goal):
    cost = level.new_zeros(())
    for _ in range(HORIZON):
        valve = policy(level, goal)
        level = row(level, valve, pump)
        cost = cost + (level - goal).square().mean() + 0.01 * valve.square().mean()
    return cost / HORIZON


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(5)
    if VARIANT == "a":
        torch.set_default_device(device)
        row, policy, level = build()
    else:
        with device:
            row, policy, level = build()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3, fused=device.type == "cuda")
    goal = torch.full_like(level, 1.5)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        level, pump = settle(row, level)
        loss = rollout(row, policy, level, pump, goal)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
