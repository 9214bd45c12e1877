"""Learns a moving scene as a field of colour, density and flow, from rays through short clips."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1100"))
RAYS, SAMPLES, WIDTH, DEPTH = 48, 24, 64, 5
FREQUENCIES, FRAMES = 6, 20

if VARIANT == "a":
    torch.autograd.set_detect_anomaly(True)


def waves(x):
    parts = [x]
    for k in range(FREQUENCIES):
        parts.append(torch.sin(2.0**k * x))
        parts.append(torch.cos(2.0**k * x))
    return torch.cat(parts, -1)


class MirageField(nn.Module):
    def __init__(self):
        super().__init__()
        size = 4 * (1 + 2 * FREQUENCIES)
        self.layers = nn.ModuleList()
        for i in range(DEPTH):
            self.layers.append(nn.Linear(size if i == 0 else WIDTH, WIDTH))
        self.colour = nn.Linear(WIDTH, 3)
        self.density = nn.Linear(WIDTH, 1)
        self.flow = nn.Linear(WIDTH, 6)

    def forward(self, points, moment):
        h = waves(torch.cat([points, moment], -1))
        for layer in self.layers:
            h = F.relu(layer(h))
        flow = torch.tanh(self.flow(h))
        density = F.softplus(self.density(h)[..., 0])
        return torch.sigmoid(self.colour(h)), density, flow[..., :3], flow[..., 3:]


def composite(colour, density, depths):
    gaps = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 0.1)], 1)
    alpha = 1.0 - torch.exp(-density * gaps)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], 1), 1)[:, :-1]
    weights = alpha * through
    return (weights[..., None] * colour).sum(1), weights


def scene_colour(origins, ways, frame):
    phase = 2 * math.pi * frame / FRAMES
    mix = origins + ways
    return 0.5 + 0.5 * torch.sin(mix * 2.0 + phase)


def ray_loss(field, origins, ways, frame, depths):
    points = origins[:, None] + depths[..., None] * ways[:, None]
    now = torch.full_like(points[..., :1], frame / FRAMES)
    step = 1.0 / FRAMES
    colour, density, ahead, back = field(points, now)
    target = scene_colour(origins, ways, frame)
    seen, weights = composite(colour, density, depths)
    loss = F.mse_loss(seen, target)
    colour_next, density_next, _, back_next = field(points + step * ahead, now + step)
    colour_past, density_past, ahead_past, _ = field(points + step * back, now - step)
    seen_next, _ = composite(colour_next, density_next, depths)
    seen_past, _ = composite(colour_past, density_past, depths)
    loss = loss + 0.5 * (F.mse_loss(seen_next, target) + F.mse_loss(seen_past, target))
    held = weights.detach()[..., None]
    loss = loss + 0.1 * (held * (ahead + back_next).abs()).mean()
    loss = loss + 0.1 * (held * (back + ahead_past).abs()).mean()
    loss = loss + 0.01 * (ahead + back).abs().mean()
    return loss + 0.01 * (ahead[:, 1:] - ahead[:, :-1]).abs().mean()


def main():
    torch.manual_seed(11)
    field = MirageField()
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
    spaced = torch.linspace(0.5, 3.0, SAMPLES)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        frame = step % FRAMES
        origins = 0.2 * torch.randn(RAYS, 3)
        ways = F.normalize(torch.randn(RAYS, 3), dim=-1)
        depths = spaced + 0.1 * torch.rand(RAYS, SAMPLES)
        loss = ray_loss(field, origins, ways, frame, depths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * took / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
