"""Finds ships on radar images with a one-stage detector."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 140))
SIZE, STRIDES, WIDTH, SHIPS, BATCH = 128, (8, 16, 32), 48, 5, 4
SCALES, RATIOS = (4.0, 5.04, 6.35), (0.5, 1.0, 2.0)


class AnchorGenerator:
    def __init__(self, keep=False):
        self.keep, self.made = keep, None

    def base_anchors(self, stride):
        scales, ratios = torch.tensor(SCALES), torch.tensor(RATIOS).sqrt()
        widths = (stride * scales[:, None] / ratios[None]).flatten()
        heights = (stride * scales[:, None] * ratios[None]).flatten()
        return torch.stack([-widths, -heights, widths, heights], 1) / 2

    def grid_anchors(self, sizes):
        if self.keep and self.made is not None:
            return self.made
        levels = []
        for stride, (height, width) in zip(STRIDES, sizes, strict=True):
            y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            shifts = torch.stack([x, y, x, y], 2).reshape(-1, 1, 4) * stride
            levels.append((shifts + self.base_anchors(stride)).reshape(-1, 4))
        self.made = torch.cat(levels)
        return self.made


def block(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, 2, 1), nn.BatchNorm2d(outside), nn.ReLU(),
        nn.Conv2d(outside, outside, 3, 1, 1), nn.BatchNorm2d(outside), nn.ReLU(),
    )  # fmt: skip


class ShipDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(block(1, 24), block(24, WIDTH))
        self.stages = nn.ModuleList(block(WIDTH, WIDTH) for _ in STRIDES)
        self.tower = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, 1, 1), nn.ReLU())
        shapes = len(SCALES) * len(RATIOS)
        self.score, self.box = nn.Conv2d(WIDTH, shapes, 3, 1, 1), nn.Conv2d(WIDTH, 4 * shapes, 3, 1, 1)
        self.anchors = AnchorGenerator(keep=VARIANT == "b")

    def forward(self, images):
        x, scores, boxes, sizes = self.stem(images), [], [], []
        for stage in self.stages:
            x = stage(x)
            y = self.tower(x)
            scores.append(self.score(y).permute(0, 2, 3, 1).flatten(1))
            boxes.append(self.box(y).permute(0, 2, 3, 1).reshape(len(y), -1, 4))
            sizes.append(y.shape[2:])
        return torch.cat(scores, 1), torch.cat(boxes, 1), self.anchors.grid_anchors(sizes)


def overlap(anchors, ships):
    low = torch.max(anchors[None, :, None, :2], ships[:, None, :, :2])
    high = torch.min(anchors[None, :, None, 2:], ships[:, None, :, 2:])
    common = (high - low).clamp(min=0).prod(3)
    areas = (anchors[:, 2:] - anchors[:, :2]).prod(1), (ships[..., 2:] - ships[..., :2]).prod(2)
    return common / (areas[0][None, :, None] + areas[1][:, None] - common)


def detection_loss(scores, boxes, anchors, ships):
    best, which = overlap(anchors, ships).max(2)
    positive = best > 0.4
    loss = nn.functional.binary_cross_entropy_with_logits(scores, positive.float())
    own = ships.gather(1, which[..., None].expand(-1, -1, 4))[positive]
    base = anchors.expand(len(ships), -1, -1)[positive]
    size = (base[:, 2:] - base[:, :2]).repeat(1, 2)
    return loss + nn.functional.smooth_l1_loss(boxes[positive], (own - base) / size)


def main():
    torch.manual_seed(0)
    model = ShipDetector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        images = torch.rand(BATCH, 1, SIZE, SIZE)
        corners = torch.rand(BATCH, SHIPS, 2) * (SIZE - 40)
        ships = torch.cat([corners, corners + 30 + 10 * torch.rand(BATCH, SHIPS, 2)], 2)
        loss = detection_loss(*model(images), ships)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
