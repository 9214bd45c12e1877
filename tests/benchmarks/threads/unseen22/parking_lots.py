"""Cars on parking lots seen from above: a map of where their centres are, and of which kind."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
BATCH = int(os.environ.get("BATCH", 32))
WIDTH = int(os.environ.get("WIDTH", 96))
WORKERS = int(os.environ.get("WORKERS", 8))
LOTS, SIDE, CELL, KINDS = 240, 256, 8, 6
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Lots(Dataset):
    """Photos with annotations in the manner of COCO: a list of dictionaries for each photo."""

    def __init__(self):
        rng = np.random.default_rng(5)
        self.photos = rng.integers(0, 256, (LOTS, 3, SIDE, SIDE), dtype=np.uint8)
        self.annotations = [self.make(rng) for _ in range(LOTS)]
        self.parsed = [self.parse(x) for x in self.annotations] if VARIANT == "b" else None

    @staticmethod
    def make(rng):
        cars = []
        for _ in range(int(rng.integers(20, 60))):
            x, y = (float(v) for v in rng.uniform(0, SIDE - 20, 2))
            w, h = (float(v) for v in rng.uniform(4, 18, 2))
            crowd = int(rng.random() < 0.05)
            cars.append(
                {"bbox": [x, y, w, h], "category_id": int(rng.integers(1, KINDS + 1)), "iscrowd": crowd}
            )
        return cars

    @staticmethod
    def parse(annotations):
        boxes, kinds = [], []
        for car in annotations:
            x, y, w, h = car["bbox"]
            if car.get("iscrowd", False) or w < 1 or h < 1:
                continue
            inside_w = max(0, min(x + w, SIDE) - max(x, 0))
            inside_h = max(0, min(y + h, SIDE) - max(y, 0))
            if inside_w * inside_h == 0:
                continue
            boxes.append([x, y, x + w, y + h])
            kinds.append(car["category_id"] - 1)
        return np.array(boxes, np.float32).reshape(-1, 4), np.array(kinds, np.int64)

    def __len__(self):
        return LOTS

    def __getitem__(self, k):
        boxes, kinds = self.parse(self.annotations[k]) if self.parsed is None else self.parsed[k]
        centres = ((boxes[:, :2] + boxes[:, 2:]) / 2 / CELL).astype(np.int64).clip(0, SIDE // CELL - 1)
        target = np.zeros((KINDS, SIDE // CELL, SIDE // CELL), np.float32)
        target[kinds, centres[:, 1], centres[:, 0]] = 1.0
        return self.photos[k], target


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class CarNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, WIDTH, 3, 2, 1)]
        for k in (1, 2, 4):
            layers += [Residual(k * WIDTH) for _ in range(3)]
            if k < 4:
                layers.append(nn.Conv2d(k * WIDTH, 2 * k * WIDTH, 3, 2, 1))
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(4 * WIDTH, KINDS, 1)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(61)
    lots = Lots()
    sampler = RandomSampler(lots, replacement=True, num_samples=STEPS * BATCH)
    loader = DataLoader(lots, BATCH, sampler=sampler, num_workers=WORKERS, pin_memory=device.type == "cuda")
    model = CarNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    for step, (photos, targets) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        photos, targets = photos.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        photos = photos.to(memory_format=torch.channels_last).float() / 255
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(photos)
        loss = F.binary_cross_entropy_with_logits(scores.float(), targets, 1 + 20 * targets)
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
