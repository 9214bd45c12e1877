"""Finds the phases of a stride in the readings of a shoe's sensors, with a leaky memory of its own."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 230))
WALKS, LENGTH, SENSORS, PHASES, BATCH = 300, 120, 9, 4, 24


def make_walks():
    """Strides of changing pace; each sensor sees the phase through its own wave."""
    g = torch.Generator().manual_seed(2)
    pace = 0.15 + 0.1 * torch.rand(WALKS, 1, generator=g)
    pace = pace + 0.03 * torch.randn(WALKS, LENGTH, generator=g)
    turn = pace.cumsum(1) + 6 * torch.rand(WALKS, 1, generator=g)
    phase = (turn / (2 * torch.pi) * PHASES).long() % PHASES
    lag = 6 * torch.rand(SENSORS, generator=g)
    signal = torch.sin(turn[..., None] + lag) + 0.4 * torch.sin(2 * turn[..., None] + 2 * lag)
    return signal + 0.5 * torch.randn(WALKS, LENGTH, SENSORS, generator=g), phase


class LeakyMemory(nn.Module):
    """Units that forget at a rate each, and faster when their gate is open."""

    def __init__(self, inputs, width):
        super().__init__()
        self.enter = nn.Linear(inputs, 2 * width)
        self.again = nn.Parameter(torch.ones(width) * 0.1)
        self.leak = nn.Parameter(torch.linspace(-2, 2, width))

    def moments(self, x):
        if VARIANT == "a":
            return [x[:, moment] for moment in range(x.shape[1])]
        return x.unbind(1)

    def forward(self, x):
        drive, gate = self.enter(x).chunk(2, -1)
        keep = torch.sigmoid(self.leak - F.softplus(gate))
        state, states = torch.zeros_like(x[:, 0, :1]).expand(-1, keep.shape[-1]), []
        for push, hold in zip(self.moments(drive), self.moments(keep), strict=True):
            state = hold * state + torch.tanh(push + self.again * state)
            states.append(state)
        return torch.stack(states, 1)


class StrideModel(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.smooth = nn.Conv1d(SENSORS, 32, 5, padding=2)
        self.first, self.second = LeakyMemory(32, width), LeakyMemory(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, PHASES)

    def forward(self, x):
        x = F.relu(self.smooth(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.norm(self.second(self.first(x))))


def main():
    torch.manual_seed(2)
    signal, phase = make_walks()
    model = StrideModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, WALKS, (BATCH,))
        scores = model(signal[rows])
        loss = F.cross_entropy(scores.flatten(0, 1), phase[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
