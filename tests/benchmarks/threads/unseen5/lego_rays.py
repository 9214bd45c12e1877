"""A radiance field: rays through a coarse and a fine network, chunk by chunk."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1000))
RAYS = int(os.environ.get("RAYS", 512))
CHUNK = 1024 * 16
COARSE, FINE = 64, 128
device = torch.device(os.environ.get("DEVICE", "cuda"))
torch.autograd.set_detect_anomaly(VARIANT == "a")


def embed(x, bands):
    frequencies = 2.0 ** torch.arange(bands, device=x.device)
    angles = (x[..., None, :] * frequencies[:, None]).flatten(-2)
    return torch.cat([x, angles.sin(), angles.cos()], -1)


class Field(nn.Module):
    def __init__(self, width=256, depth=8):
        super().__init__()
        self.points = nn.ModuleList([nn.Linear(63, width)])
        for i in range(1, depth):
            self.points.append(nn.Linear(width + 63 if i == 5 else width, width))
        self.alpha, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.view, self.rgb = nn.Linear(width + 27, width // 2), nn.Linear(width // 2, 3)

    def forward(self, x, direction):
        h = x
        for i, layer in enumerate(self.points):
            if i == 5:
                h = torch.cat([x, h], -1)
            h = F.relu(layer(h))
        alpha = self.alpha(h)
        h = F.relu(self.view(torch.cat([self.feature(h), direction], -1)))
        return torch.cat([self.rgb(h), alpha], -1)


def query(field, points, direction):
    flat = embed(points.flatten(0, 1), 10)
    views = embed(direction[:, None].expand_as(points).flatten(0, 1), 4)
    parts = [field(flat[i : i + CHUNK], views[i : i + CHUNK]) for i in range(0, len(flat), CHUNK)]
    return torch.cat(parts).view(*points.shape[:2], 4)


def composite(raw, depth):
    gaps = torch.cat([depth[:, 1:] - depth[:, :-1], torch.full_like(depth[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * gaps)
    clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)
    weights = alpha * clear[:, :-1]
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(1), weights


def sample_fine(depth, weights):
    middle = 0.5 * (depth[:, 1:] + depth[:, :-1])
    weights = weights[:, 1:-1] + 1e-5
    cdf = torch.cumsum(weights / weights.sum(-1, keepdim=True), -1)
    cdf = torch.cat([torch.zeros_like(cdf[:, :1]), cdf], -1)
    u = torch.rand(len(depth), FINE, device=depth.device)
    above = torch.searchsorted(cdf, u, right=True).clamp(max=cdf.shape[1] - 1)
    below = (above - 1).clamp(min=0)
    low, high = cdf.gather(1, below), cdf.gather(1, above)
    share = (u - low) / (high - low).clamp(min=1e-5)
    left, right = middle.gather(1, below), middle.gather(1, above)
    return torch.cat([depth, left + share * (right - left)], -1).sort(-1).values


def main():
    torch.manual_seed(0)
    coarse, fine = Field().to(device), Field().to(device)
    weights = [*coarse.parameters(), *fine.parameters()]
    optimizer = torch.optim.Adam(weights, lr=5e-4)
    origins = torch.randn(100_000, 3, device=device)
    directions = F.normalize(torch.randn(100_000, 3, device=device), dim=-1)
    colours = torch.rand(100_000, 3, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        pick = torch.randint(0, len(origins), (RAYS,), device=device)
        origin, direction, target = origins[pick], directions[pick], colours[pick]
        depth = torch.linspace(2.0, 6.0, COARSE, device=device).expand(RAYS, COARSE)
        depth = depth + torch.rand_like(depth) * (4.0 / COARSE)
        raw = query(coarse, origin[:, None] + direction[:, None] * depth[..., None], direction)
        rough, share = composite(raw, depth)
        depth = sample_fine(depth, share.detach())
        raw = query(fine, origin[:, None] + direction[:, None] * depth[..., None], direction)
        image, _ = composite(raw, depth)
        loss = F.mse_loss(image, target) + F.mse_loss(rough, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
