"""Learns how the levels of connected gauges of a river flow on, as a differential equation."""

import os
import time

import torch
from torch import nn
from torch.autograd import Function

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 480))
GAUGES, RIVERS, HOURS, BATCH = 24, 600, 8, 160
SIZE = 0.25


def make_levels():
    """Levels that follow the gauges above with a delay and fall back to rest."""
    g = torch.Generator().manual_seed(5)
    level = torch.randn(RIVERS, GAUGES, generator=g)
    rows = [level]
    for _ in range(HOURS):
        for _ in range(10):
            level = level + 0.025 * (
                level.roll(1, 1) - level + (level.roll(2, 1) * 0.7).sin() - 0.1 * level**2
            )
        rows.append(level)
    return torch.stack(rows)


class Drift(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(GAUGES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, GAUGES)
        )

    def forward(self, level):
        return self.net(level)


def advance(drift, level, size):
    """One step of Runge and Kutta."""
    k1 = drift(level)
    k2 = drift(level + size / 2 * k1)
    k3 = drift(level + size / 2 * k2)
    k4 = drift(level + size * k3)
    return level + size / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def solve(drift, level):
    levels = [level]
    for _ in range(HOURS):
        levels.append(advance(drift, levels[-1], SIZE))
    return torch.stack(levels)


class Flow(Function):
    """The levels of all hours; going back, the state is followed backwards in time with its adjoint."""

    @staticmethod
    def forward(ctx, drift, level, *parameters):
        ctx.drift, ctx.parameters = drift, parameters
        levels = solve(drift, level)
        ctx.save_for_backward(levels)
        return levels

    @staticmethod
    def backward(ctx, slopes):
        (levels,) = ctx.saved_tensors
        adjoint = slopes[-1]
        sums = [torch.zeros_like(p) for p in ctx.parameters]

        def slope(level, adjoint):
            with torch.enable_grad():
                level = level.detach().requires_grad_()
                ahead = ctx.drift(level)
                back, *parts = torch.autograd.grad(ahead, (level, *ctx.parameters), adjoint)
            return ahead.detach(), back, parts

        for hour in range(HOURS, 0, -1):
            level, weights = levels[hour], (1, 2, 2, 1)
            ahead, back, parts = slope(level, adjoint)
            total = back
            torch._foreach_add_(sums, parts, alpha=SIZE / 6)
            for weight, reach in zip(weights[1:], (SIZE / 2, SIZE / 2, SIZE), strict=True):
                ahead, back, parts = slope(level - reach * ahead, adjoint + reach * back)
                total = total + weight * back
                torch._foreach_add_(sums, parts, alpha=weight * SIZE / 6)
            adjoint = adjoint + SIZE / 6 * total + slopes[hour - 1]
        return None, adjoint, *sums


def main():
    torch.manual_seed(5)
    levels = make_levels()
    drift = Drift()
    optimizer = torch.optim.Adam(drift.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, RIVERS, (BATCH,))
        known = levels[:, rows]
        if VARIANT == "a":
            found = Flow.apply(drift, known[0], *drift.parameters())
        else:
            found = solve(drift, known[0])
        loss = (found[1:] - known[1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
