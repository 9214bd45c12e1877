"""A radiance field of a statue, learnt from photographs in which the statue was cut out by hand."""

import math
import os
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
PHOTOS = int(os.environ.get("PHOTOS", 90))
SIDE = int(os.environ.get("SIDE", 800))
RAYS = int(os.environ.get("RAYS", 4096))
WIDTH = int(os.environ.get("WIDTH", 256))
POINTS, BANDS = 64, 8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Field(nn.Module):
    """Colour and density of points in space."""

    def __init__(self):
        super().__init__()
        layers, before = [], 3 + 6 * BANDS
        for _ in range(8):
            layers += [nn.Linear(before, WIDTH), nn.ReLU()]
            before = WIDTH
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, points):
        waves = points[..., None] * 2.0 ** torch.arange(BANDS, device=points.device)
        waves = torch.cat([waves.sin(), waves.cos()], -1).flatten(-2)
        out = self.head(self.trunk(torch.cat([points, waves], -1)))
        return out[..., :3].sigmoid(), F.softplus(out[..., 3])


def render(field, origins, ways):
    depth = torch.linspace(2.0, 6.0, POINTS, device=device)
    depth = depth + torch.rand(len(origins), POINTS, device=device) * 4.0 / POINTS
    colour, density = field(origins[:, None] + ways[:, None] * depth[..., None])
    opacity = 1 - torch.exp(-density * 4.0 / POINTS)
    through = torch.cumprod(1 - opacity + 1e-6, 1)
    weight = opacity * torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], 1)
    return (weight[..., None] * colour).sum(1)


class Studio:
    """All photographs with the cut-outs and where the camera stood."""

    def __init__(self):
        rows = torch.linspace(-1, 1, SIDE)
        self.photos = torch.randint(0, 256, (PHOTOS, SIDE // 8, SIDE // 8, 3), dtype=torch.uint8)
        self.photos = self.photos.repeat_interleave(8, 1).repeat_interleave(8, 2)
        size = 0.35 + 0.3 * torch.rand(PHOTOS, 1, 1)
        self.masks = (rows[:, None] ** 2 + 3 * rows[None] ** 2)[None] < size
        angle = torch.arange(PHOTOS) * 2 * math.pi / PHOTOS
        zero, one = torch.zeros(PHOTOS), torch.ones(PHOTOS)
        self.turns = torch.stack(
            [angle.cos(), zero, angle.sin(), zero, one, zero, -angle.sin(), zero, angle.cos()], 1
        )
        self.turns = self.turns.view(PHOTOS, 3, 3)
        self.inside = None

    def choose(self, count):
        inside = self.inside
        if inside is None:
            inside = torch.nonzero(self.masks)
        if VARIANT == "b":
            self.inside = inside
        return inside[random.sample(range(len(inside)), count)]

    def batch(self, count):
        photo, row, column = self.choose(count).unbind(1)
        colours = self.photos[photo, row, column]
        ways = torch.stack([column / SIDE - 0.5, 0.5 - row / SIDE, -torch.ones(count)], 1)
        ways = torch.einsum("nij,nj->ni", self.turns[photo], ways)
        origins = self.turns[photo] @ torch.tensor([0.0, 0.0, 4.0])
        return origins.to(device), F.normalize(ways, dim=1).to(device), colours.to(device)


def main():
    torch.manual_seed(3)
    random.seed(3)
    studio, field = Studio(), Field().to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        origins, ways, colours = studio.batch(RAYS)
        seen = render(field, origins, ways)
        loss = F.mse_loss(seen, colours.float() / 255)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
