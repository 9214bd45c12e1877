"""Rays through a made-up scene, and the sines and cosines of places along them."""

import torch


def scene(count, device, seed=4):
    """Origins, directions and colours of rays that look at two soft balls."""
    g = torch.Generator(device=device).manual_seed(seed)
    origin = torch.randn(count, 3, generator=g, device=device)
    origin = 4.0 * origin / origin.norm(dim=1, keepdim=True)
    aim = 0.6 * torch.randn(count, 3, generator=g, device=device)
    direction = aim - origin
    direction = direction / direction.norm(dim=1, keepdim=True)
    nearest = (origin + 4.0 * direction).norm(dim=1, keepdim=True)
    colour = torch.cat([torch.exp(-nearest), torch.exp(-2 * nearest), torch.sigmoid(aim[:, :1])], 1)
    return origin, direction, colour


def encode_by_loop(x, bands):
    parts = [x]
    for i in range(bands):
        for fn in (torch.sin, torch.cos):
            parts.append(fn((2.0**i) * x))
    return torch.cat(parts, -1)


def encode_by_list(x, bands):
    waves = [fn((2.0**i) * x) for i in range(bands) for fn in (torch.sin, torch.cos)]
    return torch.cat([x, *waves], -1)


def weights_along(density, depth):
    """How much of a ray's light comes from each of its places."""
    gap = depth[:, 1:] - depth[:, :-1]
    gap = torch.cat([gap, gap[:, -1:]], 1)
    alpha = 1.0 - torch.exp(-torch.relu(density) * gap)
    clear = torch.cumprod(1.0 - alpha + 1e-10, 1)
    clear = torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], 1)
    return alpha * clear
