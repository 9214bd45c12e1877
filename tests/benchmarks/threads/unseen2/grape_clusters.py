"""Segments clusters of grapes; instances are stored as polygons."""

import os
import time

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
IMAGES, INSTANCES, CORNERS, SIDE, BATCH = 64, 6, 14, 96, 4


def polygon_to_mask(polygon):
    """Even-odd rule, row by row."""
    if VARIANT == "b":
        image = Image.new("L", (SIDE, SIDE))
        ImageDraw.Draw(image).polygon([tuple(p) for p in polygon], fill=1)
        return np.asarray(image)
    mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
    following = np.roll(polygon, -1, axis=0)
    for row in range(SIDE):
        crossings = []
        for (x0, y0), (x1, y1) in zip(polygon, following, strict=True):
            if (y0 <= row) != (y1 <= row):
                crossings.append(x0 + (row - y0) * (x1 - x0) / (y1 - y0))
        crossings.sort()
        for left, right in zip(crossings[::2], crossings[1::2], strict=False):
            mask[row, int(np.ceil(left)) : int(right) + 1] = 1
    return mask


class Clusters(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.images = rng.random((IMAGES, 3, SIDE, SIDE), dtype=np.float32)
        turns = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
        middle = rng.uniform(20, SIDE - 20, (IMAGES, INSTANCES, 1, 2))
        reach = rng.uniform(6, 18, (IMAGES, INSTANCES, CORNERS, 1))
        self.polygons = middle + reach * np.stack([np.cos(turns), np.sin(turns)], -1)

    def __len__(self):
        return IMAGES

    def __getitem__(self, i):
        masks = np.stack([polygon_to_mask(polygon) for polygon in self.polygons[i]])
        return self.images[i], torch.from_numpy(masks).float()


class Segmenter(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 1, 1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU(), nn.Conv2d(2 * width, width, 3, 1, 1), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(width, INSTANCES, 1),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Clusters(), batch_size=BATCH, shuffle=True)
    model = Segmenter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while step < STEPS:
        for images, masks in loader:
            if step == 5:
                start = time.perf_counter()
            loss = nn.functional.binary_cross_entropy_with_logits(model(images), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
