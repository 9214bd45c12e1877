"""Tells the states of a glacier apart: every state gets a direction that its recordings gather around."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "800"))

STATES, CHANNELS, LENGTH = 5, 6, 64


class Encoder(nn.Module):
    def __init__(self, size=16, width=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(CHANNELS, width, 7, stride=2, padding=3), nn.GELU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.GELU(),
        )  # fmt: skip
        self.features = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, size))
        self.states = nn.Linear(size, STATES)

    def forward(self, x):
        h = self.conv(x)
        features = self.features(torch.cat([h.mean(2), h.amax(2)], dim=1))
        return F.normalize(features, dim=1), self.states(features)


class DispersionLoss(nn.Module):
    """Pushes the mean directions of the states apart; the means follow the features of each batch."""

    def __init__(self, size=16, momentum=0.95, temperature=0.1):
        super().__init__()
        self.register_buffer("prototypes", F.normalize(torch.randn(STATES, size), dim=1))
        self.momentum, self.temperature = momentum, temperature

    def follow(self, features, states):
        prototypes = self.prototypes.clone()
        keep = self.momentum
        if VARIANT == "a":
            for j in range(len(features)):
                moved = prototypes[states[j]] * keep + features[j] * (1 - keep)
                prototypes[states[j]] = F.normalize(moved, dim=0)
            return prototypes
        member = F.one_hot(states, STATES).to(features.dtype)
        counts = member.sum(0)[:, None]
        means = member.t() @ features / counts.clamp(min=1)
        share = 1 - keep**counts
        return F.normalize(prototypes * (1 - share) + means * share, dim=1)

    def forward(self, features, states):
        prototypes = self.follow(features, states)
        self.prototypes = prototypes.detach()
        logits = prototypes @ prototypes.t() / self.temperature
        others = ~torch.eye(STATES, dtype=torch.bool)
        spread = torch.log(torch.exp(logits)[others].view(STATES, STATES - 1).mean(1)).mean()
        near = F.cross_entropy(features @ prototypes.detach().t() / self.temperature, states)
        return self.temperature * spread + near


def vamp_like(features, later):
    """How well the features now foretell the features later, to be raised."""
    a = features - features.mean(0)
    b = later - later.mean(0)
    cross = a.t() @ b / len(a)
    return cross.square().sum() / (a.var() * b.var() + 1e-6) / math.sqrt(len(a))


def record(generator, count):
    states = torch.zeros(count, dtype=torch.long)
    jump = torch.rand(count, generator=generator) < 0.05
    new = torch.randint(0, STATES, (count,), generator=generator)
    for i in range(1, count):
        states[i] = new[i] if jump[i] else states[i - 1]
    t = torch.arange(LENGTH) / LENGTH
    rate = 3 + 2 * states[:, None, None] + torch.arange(CHANNELS)[:, None]
    phase = 6.28 * torch.rand(count, CHANNELS, 1, generator=generator)
    noise = torch.randn(count, CHANNELS, LENGTH, generator=generator)
    return torch.sin(rate * 3 * t + phase) + 0.4 * noise, states


torch.manual_seed(51)
generator = torch.Generator().manual_seed(52)
recordings, states = record(generator, 4001)
model, dispersion = Encoder(), DispersionLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        start = time.perf_counter()
    rows = torch.randint(0, 4000, (96,), generator=generator)
    features, logits = model(recordings[rows])
    later, _ = model(recordings[rows + 1])
    loss = F.cross_entropy(logits, states[rows]) + 0.1 * dispersion(features, states[rows])
    loss = loss - 0.01 * vamp_like(features, later)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
