"""Fit a radiance field to a made-up scene: places along rays, an MLP, colours added up."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import wren_rays

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 6 if SMALL else 5000))
WARMUP = 2 if SMALL else 10

device = "cuda" if torch.cuda.is_available() else "cpu"
RAYS = 16 if SMALL else 4096
PLACES = 8 if SMALL else 128
WIDTH = 32 if SMALL else 256
LAYERS = 2 if SMALL else 8
BANDS_PLACE = 10
BANDS_VIEW = 4

encode = wren_rays.encode_by_loop if VARIANT == "a" else wren_rays.encode_by_list


class Field(nn.Module):
    """Density of a place, and its colour as seen from a direction."""

    def __init__(self):
        super().__init__()
        place, view = 3 + 6 * BANDS_PLACE, 3 + 6 * BANDS_VIEW
        self.inp = nn.Linear(place, WIDTH)
        self.body = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS - 1))
        self.density = nn.Linear(WIDTH, 1)
        self.feature = nn.Linear(WIDTH, WIDTH)
        self.view = nn.Linear(WIDTH + view, WIDTH // 2)
        self.colour = nn.Linear(WIDTH // 2, 3)

    def forward(self, place, view):
        h = F.relu(self.inp(place))
        for layer in self.body:
            h = F.relu(layer(h))
        density = self.density(h).squeeze(-1)
        h = F.relu(self.view(torch.cat([self.feature(h), view], -1)))
        return density, torch.sigmoid(self.colour(h))


def render(field, origin, direction):
    """Colours of the rays, by places drawn between the near and the far end."""
    edges = torch.linspace(2.0, 6.0, PLACES + 1, device=device)
    jitter = torch.rand(len(origin), PLACES, device=device)
    depth = edges[:-1] + jitter * (edges[1:] - edges[:-1])
    place = origin.unsqueeze(1) + direction.unsqueeze(1) * depth.unsqueeze(2)
    view = encode(direction, BANDS_VIEW).unsqueeze(1).expand(-1, PLACES, -1)
    density, colour = field(encode(place, BANDS_PLACE), view)
    weights = wren_rays.weights_along(density, depth)
    return (weights.unsqueeze(2) * colour).sum(1)


def clock():
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    origin, direction, colour = wren_rays.scene(64 * RAYS, device)
    field = Field().to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4, fused=device == "cuda")

    for step in range(STEPS):
        if step == WARMUP:
            begin = clock()
        part = torch.randint(len(origin), (RAYS,), device=device)
        seen = render(field, origin[part], direction[part])
        loss = F.mse_loss(seen, colour[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 500 == 0:
            print(f"step {step + 1} loss {loss.item():.5f}")
    took = clock() - begin

    print(f"loss {loss.item():.5f}")
    print(f"{took * 1000 / (STEPS - WARMUP):.2f} ms per step")


if __name__ == "__main__":
    main()
