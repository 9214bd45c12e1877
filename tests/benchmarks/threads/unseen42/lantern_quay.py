"""Segment cells in microscope pictures with a small encoder and decoder.

The pictures are bent by random smooth fields while training, each together with its mask, as tissue is
bent under a cover glass.
"""

import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2600))

SIZE = 64
BATCH = 16
KERNEL = 63
SIGMA = 32.0
EVAL_EVERY = 100


def make_cells(count, seed):
    """Pictures with round cells on an uneven ground, and the masks of the cells."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    pictures = np.zeros((count, 1, SIZE, SIZE), dtype=np.float32)
    masks = np.zeros((count, 1, SIZE, SIZE), dtype=np.float32)
    for item in range(count):
        ground = 0.2 * np.sin(rows / rng.uniform(6, 14)) + 0.2 * np.cos(columns / rng.uniform(6, 14))
        for _ in range(rng.integers(3, 7)):
            y, x, radius = rng.uniform(8, SIZE - 8), rng.uniform(8, SIZE - 8), rng.uniform(4, 9)
            inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
            masks[item, 0][inside] = 1
            ground = ground + inside * rng.uniform(0.3, 0.7)
        pictures[item, 0] = ground + rng.normal(scale=0.2, size=ground.shape)
    return torch.from_numpy(pictures), torch.from_numpy(masks)


def gaussian(length, sigma):
    """A bell of unit sum, as a row."""
    places = torch.arange(length, dtype=torch.float32) - (length - 1) / 2
    bell = torch.exp(-(places**2) / (2 * sigma**2))
    return bell / bell.sum()


def gaussian_square(length, sigma):
    """The outer product of two bells."""
    row = gaussian(length, sigma)
    return row[:, None] * row[None, :]


def filter_square(fields, kernel):
    """Filter each channel with one square kernel; beyond the border is zero."""
    count, channels, height, width = fields.shape
    margin = kernel.shape[-1] // 2
    padded = F.pad(fields, (margin, margin, margin, margin))
    flat = padded.reshape(count * channels, 1, padded.shape[-2], padded.shape[-1])
    return F.conv2d(flat, kernel[None, None]).reshape(count, channels, height, width)


def filter_lines(fields, row):
    """Filter each channel along its lines, then along its columns; beyond the border is zero."""
    count, channels, height, width = fields.shape
    margin = row.shape[-1] // 2
    flat = fields.reshape(count * channels, 1, height, width)
    flat = F.conv2d(flat, row[None, None, None, :], padding=(0, margin))
    flat = F.conv2d(flat, row[None, None, :, None], padding=(margin, 0))
    return flat.reshape(count, channels, height, width)


class ElasticTransform(nn.Module):
    """Bend pictures and masks by a smooth random field."""

    def __init__(self, kernel_size=KERNEL, sigma=SIGMA, alpha=(1.0, 1.0), chance=0.5):
        super().__init__()
        self.kernel_size = kernel_size
        self.sigma = sigma
        self.alpha = alpha
        self.chance = chance

    def smooth(self, noise):
        """The field, from noise of the shape (pictures, 2, height, width)."""
        if VARIANT == "a":
            kernel_x = gaussian_square(self.kernel_size, self.sigma)
            kernel_y = gaussian_square(self.kernel_size, self.sigma)
            field_x = filter_square(noise[:, :1], kernel_x) * self.alpha[0]
            field_y = filter_square(noise[:, 1:], kernel_y) * self.alpha[1]
        else:
            row = gaussian(self.kernel_size, self.sigma)
            field_x = filter_lines(noise[:, :1], row) * self.alpha[0]
            field_y = filter_lines(noise[:, 1:], row) * self.alpha[1]
        return torch.cat([field_x, field_y], dim=1).permute(0, 2, 3, 1)

    @torch.no_grad()
    def forward(self, pictures, masks):
        chosen = torch.rand(pictures.shape[0]) < self.chance
        if not chosen.any():
            return pictures, masks
        picked = chosen.nonzero().squeeze(1)
        noise = torch.rand(len(picked), 2, *pictures.shape[-2:]) * 2 - 1
        field = self.smooth(noise)
        lines = torch.linspace(-1, 1, pictures.shape[-2])
        columns = torch.linspace(-1, 1, pictures.shape[-1])
        grid = torch.stack(torch.meshgrid(columns, lines, indexing="xy"), dim=-1)
        grid = (grid[None] + field).clamp(-1, 1)
        bent = F.grid_sample(pictures[picked], grid, align_corners=True)
        bent_masks = F.grid_sample(masks[picked], grid, mode="nearest", align_corners=True)
        return pictures.index_copy(0, picked, bent), masks.index_copy(0, picked, bent_masks)


class Flip(nn.Module):
    """Turn a batch over, left to right or top to bottom."""

    def forward(self, pictures, masks):
        for dimension in (-1, -2):
            if torch.rand(()) < 0.5:
                pictures, masks = pictures.flip(dimension), masks.flip(dimension)
        return pictures, masks


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class SmallUNet(nn.Module):
    """Three levels down, three up, with the levels joined."""

    def __init__(self, width=8):
        super().__init__()
        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.deep = block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, pictures):
        first = self.down1(pictures)
        second = self.down2(F.max_pool2d(first, 2))
        deep = self.deep(F.max_pool2d(second, 2))
        second = self.up2(torch.cat([F.interpolate(deep, scale_factor=2), second], dim=1))
        first = self.up1(torch.cat([F.interpolate(second, scale_factor=2), first], dim=1))
        return self.head(first)


def dice_loss(logits, masks):
    shares = logits.sigmoid()
    both = (shares * masks).sum((1, 2, 3))
    return (1 - (2 * both + 1) / (shares.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)).mean()


@torch.no_grad()
def overlap(model, pictures, masks):
    """Mean intersection over union on held-out pictures."""
    model.eval()
    found = model(pictures) > 0
    both = (found & (masks > 0.5)).sum((1, 2, 3)).float()
    either = (found | (masks > 0.5)).sum((1, 2, 3)).float()
    model.train()
    return (both / either.clamp_min(1)).mean().item()


def main():
    torch.manual_seed(0)
    pictures, masks = make_cells(512, seed=1)
    check_pictures, check_masks = make_cells(48, seed=2)
    model = SmallUNet()
    augmentations = [Flip(), ElasticTransform()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rate = lambda step: 0.5 * (1 + math.cos(math.pi * step / max(STEPS, 1)))  # noqa: E731
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    order = torch.randperm(len(pictures))

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        place = (step * BATCH) % len(pictures)
        if place == 0:
            order = torch.randperm(len(pictures))
        chosen = order[place : place + BATCH]
        batch, target = pictures[chosen], masks[chosen]
        for augmentation in augmentations:
            batch, target = augmentation(batch, target)
        logits = model(batch)
        loss = F.binary_cross_entropy_with_logits(logits, target) + dice_loss(logits, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % EVAL_EVERY == EVAL_EVERY - 1:
            score = overlap(model, check_pictures, check_masks)
            print(f"step {step + 1} loss {loss.item():.4f} overlap {score:.3f}")
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
