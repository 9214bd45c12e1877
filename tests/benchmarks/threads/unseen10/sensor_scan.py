"""Tells how far a pump is from failing by a selective state space model of its sensors."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 700))
PUMPS, LENGTH, SENSORS, BATCH = 400, 64, 14, 24
WIDTH, STATES, LAYERS = 32, 16, 2


def make_pumps():
    """Sensors that drift with wear, some of them only near the end."""
    g = torch.Generator().manual_seed(9)
    life = torch.rand(PUMPS, 1, 1, generator=g)
    hours = torch.linspace(0, 1, LENGTH)[None, :, None]
    wear = (1 - life + 0.3 * hours).clamp(0, 1.3)
    onset = torch.rand(1, 1, SENSORS, generator=g)
    load = 0.3 * torch.sin(40 * hours + 6 * torch.rand(PUMPS, 1, SENSORS, generator=g))
    noise = 0.2 * torch.randn(PUMPS, LENGTH, SENSORS, generator=g)
    return F.relu(wear - onset) * 2 + load + noise, life[:, 0, 0]


def scan(decay, inflow):
    """All states h of h[t] = decay[t] * h[t - 1] + inflow[t], with h[-1] = 0."""
    states = []
    for keep, enter in zip(decay.unbind(1), inflow.unbind(1), strict=True):
        states.append(torch.addcmul(enter, keep, states[-1]) if states else enter)
    return torch.stack(states, 1)


def pairwise_scan(decay, inflow):
    """The same: joins neighbours, scans the half as many pairs, then fills in what lies between."""
    if inflow.shape[1] == 1:
        return inflow
    keep = decay[:, 1::2]
    pairs = pairwise_scan(keep * decay[:, ::2], torch.addcmul(inflow[:, 1::2], keep, inflow[:, ::2]))
    between = torch.addcmul(inflow[:, 2::2], decay[:, 2::2], pairs[:, :-1])
    between = torch.cat([inflow[:, :1], between], 1)
    return torch.stack([between, pairs], 2).flatten(1, 2)


class SelectiveLayer(nn.Module):
    def __init__(self):
        super().__init__()
        inner = 2 * WIDTH
        self.norm = nn.LayerNorm(WIDTH)
        self.into, self.out = nn.Linear(WIDTH, 2 * inner), nn.Linear(inner, WIDTH)
        self.smooth = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, 4 + 2 * STATES)
        self.rate = nn.Linear(4, inner)
        self.log_a = nn.Parameter(torch.arange(1.0, STATES + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        nn.init.constant_(self.rate.bias, -3.0)

    def forward(self, x):
        u, gate = self.into(self.norm(x)).chunk(2, -1)
        u = F.silu(self.smooth(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        rate, b, c = self.select(u).split([4, STATES, STATES], -1)
        rate = F.softplus(self.rate(rate))
        decay = torch.exp(rate[..., None] * -self.log_a.exp())
        inflow = (rate * u)[..., None] * b[:, :, None]
        states = (scan if VARIANT == "a" else pairwise_scan)(decay, inflow)
        y = (states @ c[..., None])[..., 0] + self.skip * u
        return x + self.out(y * F.silu(gate))


class PumpModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(SENSORS, WIDTH)
        self.layers = nn.Sequential(*[SelectiveLayer() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1))

    def forward(self, x):
        return self.head(self.layers(self.into(x))[:, -1])[:, 0]


def main():
    torch.manual_seed(9)
    readings, life = make_pumps()
    model = PumpModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, PUMPS, (BATCH,))
        loss = F.smooth_l1_loss(model(readings[rows]), life[rows], beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
