"""Reef segmentation (coral, sponge, algae): pixels near the outline of a colony weigh more in the loss."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "400"))
BATCH = 8
SIDE = 96
REACH = 7
WIDTH = 16
KINDS = 3
EDGE_WEIGHT = 4.0
device = torch.device("cpu")


def grey_dilate(image, offsets):
    """Greyscale dilation of (batch, kinds, height, width) by a structuring element of offsets."""
    k = offsets.shape[0]
    height, width = image.shape[-2:]
    padded = F.pad(image, [k // 2] * 4, value=-1e4)
    if VARIANT == "a":
        windows = padded.unfold(2, k, 1).unfold(3, k, 1)
        out, _ = torch.max(windows + offsets, 4)
        out, _ = torch.max(out, 4)
        return out
    out = padded[..., :height, :width] + offsets[0, 0]
    for i in range(k):
        for j in range(k):
            view = padded[..., i : i + height, j : j + width] + offsets[i, j]
            torch.maximum(out, view, out=out)
    return out


def grey_erode(image, offsets):
    return -grey_dilate(-image, offsets)


@torch.no_grad()
def outline_weights(mask, offsets):
    """1 far from the outline, up to 1 + EDGE_WEIGHT on it."""
    rim = grey_dilate(mask, offsets) - grey_erode(mask, offsets)
    return 1 + EDGE_WEIGHT * rim.clamp(0, 1)


def block(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
    )


class CoralNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, stride=2, padding=1)
        self.down1 = block(WIDTH, WIDTH)
        self.down2 = block(WIDTH, 2 * WIDTH)
        self.up1 = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 2, stride=2)
        self.merge = block(2 * WIDTH, WIDTH)
        self.head = nn.Conv2d(WIDTH, KINDS, 1)

    def forward(self, photo):
        a = self.down1(self.stem(photo))
        b = self.down2(F.max_pool2d(a, 2))
        out = self.head(self.merge(torch.cat([self.up1(b), a], dim=1)))
        return F.interpolate(out, scale_factor=2, mode="bilinear", align_corners=False)


def draw(gen):
    """Photos of round colonies on sand, and their masks."""
    axis = torch.linspace(-1, 1, SIDE)
    centre = torch.rand(BATCH, KINDS, 2, 1, generator=gen) * 1.6 - 0.8
    radius = 0.2 + 0.3 * torch.rand(BATCH, KINDS, 1, 1, generator=gen)
    dx = (axis.view(1, 1, 1, -1) - centre[:, :, :1]) ** 2
    dy = (axis.view(1, 1, -1, 1) - centre[:, :, 1:]) ** 2
    mask = ((dx + dy) < radius**2).float()
    photo = 0.7 * mask + 0.3 * torch.randn(BATCH, 3, SIDE, SIDE, generator=gen)
    return photo, mask


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(11)
    axis = torch.arange(REACH) - REACH // 2
    offsets = -0.02 * (axis.view(-1, 1) ** 2 + axis.view(1, -1) ** 2).float()
    model = CoralNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        photo, mask = draw(gen)
        weight = outline_weights(mask, offsets)
        logits = model(photo.to(device))
        loss = F.binary_cross_entropy_with_logits(logits, mask, weight=weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * took / max(1, STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
