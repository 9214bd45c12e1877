"""Fits feedback delay networks to the echoes in the chambers of a cave; all share their delay lines."""

import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "700"))

RATE = 16000
POINTS = 2**10
LINES, CHAMBERS = 16, 6


class DelayLines(nn.Module):
    """Delays of given lengths, as their response at each frequency."""

    def __init__(self, lengths):
        super().__init__()
        self.register_buffer("lengths", torch.tensor(list(lengths), dtype=torch.float32))
        self.register_buffer("omega", torch.linspace(0, math.pi, POINTS // 2 + 1))
        self.kept = None

    def response(self):
        angle = -self.omega[:, None] * self.lengths
        return torch.polar(torch.ones_like(angle), angle)

    def forward(self):
        if VARIANT == "a":
            return self.response()
        if self.kept is None:
            self.kept = self.response()
        return self.kept


class Damping(nn.Module):
    """A one-pole lowpass per line, with a gain for the length of its line."""

    def __init__(self, lengths):
        super().__init__()
        self.register_buffer("seconds", torch.tensor(list(lengths)) / RATE)
        z = torch.linspace(0, math.pi, POINTS // 2 + 1)
        self.register_buffer("z", torch.polar(torch.ones_like(z), -z))
        self.log_time = nn.Parameter(torch.zeros(CHAMBERS, 1))
        self.pole = nn.Parameter(torch.full((CHAMBERS, LINES), -2.0))

    def forward(self):
        gain = 10 ** (-3 * self.seconds / self.log_time.exp())
        pole = torch.sigmoid(self.pole)
        return (gain * (1 - pole))[:, None] / (1 - pole[:, None] * self.z[:, None])


class EchoNetwork(nn.Module):
    def __init__(self, lengths):
        super().__init__()
        self.delays = DelayLines(lengths)
        self.damping = Damping(lengths)
        self.mixing = nn.Parameter(0.3 * torch.randn(CHAMBERS, LINES, LINES))
        self.enter = nn.Parameter(torch.randn(CHAMBERS, 1, LINES) / LINES)
        self.leave = nn.Parameter(torch.randn(CHAMBERS, LINES, 1) / LINES)
        self.direct = nn.Parameter(torch.full((CHAMBERS, 1), 0.1))

    def forward(self):
        mixing = torch.matrix_exp(self.mixing - self.mixing.mT)[:, None]
        once = self.delays() * self.damping()
        again = self.delays() * self.damping()
        loop = torch.eye(LINES) - again[..., None] * mixing
        lines = torch.linalg.solve(loop, (once * self.enter)[..., None]).squeeze(-1)
        return (lines @ self.leave.to(lines.dtype)).squeeze(-1) + self.direct


class BandLoss(nn.Module):
    """Differences of level and of decay, on a few resolutions."""

    def __init__(self, target):
        super().__init__()
        self.register_buffer("target", target)

    def levels(self, response, width):
        power = response.real.square() + response.imag.square()
        return torch.log10(torch.nn.functional.avg_pool1d(power[:, None], width, width // 2) + 1e-6)

    def decay(self, response):
        energy = torch.fft.irfft(response).square()
        return torch.log10(energy.flip(1).cumsum(1).flip(1)[:, :: POINTS // 64] + 1e-8)

    def forward(self, response):
        loss = (self.decay(response) - self.decay(self.target)).abs().mean()
        for width in (8, 32, 128):
            loss = loss + (self.levels(response, width) - self.levels(self.target, width)).abs().mean()
        return loss


def measured_echoes(generator):
    t = torch.arange(POINTS) / RATE
    noise = torch.randn(CHAMBERS, POINTS, generator=generator) * torch.exp(-t * 30)
    taps = torch.zeros(CHAMBERS, POINTS)
    at = torch.randint(60, POINTS, (CHAMBERS, 40), generator=generator)
    taps.scatter_(1, at, torch.randn(at.shape, generator=generator) * torch.exp(-20 * at / RATE))
    return torch.fft.rfft(0.05 * noise + 0.3 * taps)


torch.manual_seed(81)
generator = torch.Generator().manual_seed(82)
model = EchoNetwork(range(101, 581, 31))
criterion = BandLoss(measured_echoes(generator))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        start = time.perf_counter()
    loss = criterion(model())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
