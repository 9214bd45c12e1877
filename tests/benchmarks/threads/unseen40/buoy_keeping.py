"""A buoy kept in place: a forward model and a Lyapunov function are learnt together."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 600))
STATE, FORCE = 6, 2
MOVES = 4096
PROBES = 32
RHO, EPSILON = 0.1, 0.05


class DriftModel(nn.Module):
    """x[n+1] as a function of x[n] and of the force of the thrusters."""

    def __init__(self, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE + FORCE, width),
            nn.LeakyReLU(0.1),
            nn.Linear(width, width),
            nn.LeakyReLU(0.1),
            nn.Linear(width, STATE),
        )

    def forward(self, state, force):
        return state + 0.1 * self.net(torch.cat((state, force), dim=-1))


class MooringPotential(nn.Module):
    """V(x) = net(x) - net(0) + rho |x|_1"""

    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE, width),
            nn.LeakyReLU(0.1),
            nn.Linear(width, width),
            nn.LeakyReLU(0.1),
            nn.Linear(width, 1),
        )

    def forward(self, state):
        rest = self.net(torch.zeros(STATE))
        return (self.net(state) - rest).squeeze(-1) + RHO * state.abs().sum(dim=-1)


class BuoyKeeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.drift = DriftModel()
        self.potential = MooringPotential()
        self.gain = nn.Linear(STATE, FORCE, bias=False)

    def closed_loop(self, state):
        return self.drift(state, torch.tanh(self.gain(state)))

    def positivity(self, states):
        return F.relu(-self.potential(states)).mean()

    def decrease_at(self, state):
        value = self.potential(state)
        change = self.potential(self.closed_loop(state)) - value
        return F.relu(change + EPSILON * value)

    def decrease(self, states):
        if VARIANT == "a":
            loss = 0.0
            for i in range(states.shape[0]):
                loss = loss + self.decrease_at(states[i])
            return loss / states.shape[0]
        return self.decrease_at(states).mean()


def sea(count, gen):
    state = torch.randn(count, STATE, generator=gen)
    force = torch.rand(count, FORCE, generator=gen) * 2 - 1
    turn = torch.roll(state, 1, dims=1)
    push = torch.nn.functional.pad(force, (0, STATE - FORCE))
    after = 0.97 * state + 0.05 * torch.sin(turn) + 0.1 * push
    return state, force, after


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(5)
    keeper = BuoyKeeper()
    opt = torch.optim.Adam(keeper.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    total, begin = 0.0, time.perf_counter()
    for step in range(STEPS):
        state, force, after = sea(MOVES, gen)
        probes = torch.randn(PROBES, STATE, generator=gen)
        fit = F.mse_loss(keeper.drift(state, force), after)
        loss = 10.0 * fit + keeper.positivity(probes) + keeper.decrease(probes)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if step + 1 == warm:
            begin = time.perf_counter()
    spent = time.perf_counter() - begin
    print(f"loss {total / STEPS:.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
