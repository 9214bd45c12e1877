"""Surface fitting from photographs of a quarry: per-view depth and colour with a depth-normal loss."""

import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 5 if SMALL else 4000))
WARMUP = 2 if SMALL else 10
device = "cuda" if torch.cuda.is_available() else "cpu"

WIDTH, HEIGHT = (96, 64) if SMALL else (1600, 1200)
VIEWS = 4 if SMALL else 24
PER_STEP = 2 if SMALL else 3
FEATURES = 16 if SMALL else 32


class View:
    """A pinhole camera on a circle around the site, with its photograph and its mask."""

    def __init__(self, number, generator):
        angle = 2 * math.pi * number / VIEWS
        focal = 0.9 * WIDTH
        intrinsics = torch.tensor([[focal, 0, WIDTH / 2], [0, focal, HEIGHT / 2], [0, 0, 1.0]])
        c, s = math.cos(angle), math.sin(angle)
        self.rotation = torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], device=device)
        self.center = torch.tensor([-3 * s, 0, -3 * c], device=device)
        self.inverse = torch.linalg.inv(intrinsics).to(device)
        photo = torch.rand(1, 3, HEIGHT // 16, WIDTH // 16, generator=generator)
        photo = F.interpolate(photo, (HEIGHT, WIDTH), mode="bilinear", align_corners=False)
        self.photo = photo.to(device, torch.float16)


def depths_to_points(view, depth):
    """World coordinates of the surface seen by each pixel of the view."""
    if VARIANT == "a":
        grid_x, grid_y = torch.meshgrid(torch.arange(WIDTH) + 0.5, torch.arange(HEIGHT) + 0.5, indexing="xy")
    else:
        grid_x, grid_y = torch.meshgrid(
            torch.arange(WIDTH, device=device) + 0.5, torch.arange(HEIGHT, device=device) + 0.5, indexing="xy"
        )
    pixels = torch.stack([grid_x, grid_y, torch.ones_like(grid_x)], dim=-1).reshape(-1, 3).to(device)
    rays = pixels @ view.inverse.t() @ view.rotation.t()
    points = depth.reshape(-1, 1) * rays + view.center
    return points.reshape(HEIGHT, WIDTH, 3)


def normals_from(points):
    dx = points[2:, 1:-1] - points[:-2, 1:-1]
    dy = points[1:-1, 2:] - points[1:-1, :-2]
    return F.normalize(torch.cross(dx, dy, dim=-1), dim=-1)


class QuarryModel(nn.Module):
    """One learned plane of features per view and a decoder that all views share."""

    def __init__(self):
        super().__init__()
        self.planes = nn.Parameter(0.1 * torch.randn(VIEWS, FEATURES, HEIGHT // 8, WIDTH // 8))
        self.decoder = nn.Sequential(nn.Conv2d(FEATURES, 64, 1), nn.ReLU(inplace=True), nn.Conv2d(64, 7, 1))

    def forward(self, index):
        plane = F.interpolate(
            self.planes[index : index + 1], (HEIGHT, WIDTH), mode="bilinear", align_corners=False
        )
        with torch.autocast(device, dtype=torch.bfloat16):
            out = self.decoder(plane)
        out = out.float()
        depth = 3.0 + torch.tanh(out[:, :1])
        color = torch.sigmoid(out[:, 1:4])
        normal = F.normalize(out[0, 4:].permute(1, 2, 0), dim=-1)
        return depth, color, normal


def view_loss(model, view, index):
    depth, color, normal = model(index)
    photometric = (color - view.photo).abs().mean()
    surface = normals_from(depths_to_points(view, depth))
    agreement = 1.0 - (surface * normal[1:-1, 1:-1]).sum(-1)
    return photometric + 0.05 * agreement.mean()


def main():
    torch.manual_seed(11)
    order = random.Random(11)
    generator = torch.Generator().manual_seed(11)
    views = [View(i, generator) for i in range(VIEWS)]
    model = QuarryModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=device == "cuda")
    total = torch.zeros((), device=device)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == WARMUP:
            if device == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for index in order.sample(range(VIEWS), PER_STEP):
            loss = view_loss(model, views[index], index) / PER_STEP
            loss.backward()
            total.mul_(0.9).add_(0.1 * PER_STEP * loss.detach())
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    print(f"loss {total.item():.4f}")
    print(f"{elapsed / max(1, STEPS - WARMUP) * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
