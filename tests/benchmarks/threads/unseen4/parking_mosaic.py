"""Finds free parking bays in mosaics of four camera frames."""

import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 600))
RECORDS, STORED, SIZE, BOXES, GRID, BATCH = 45_000, 300, 64, 6, 16, 8


class ParkingRecords:
    """Frames of some cameras, and the bays seen in each record."""

    def __init__(self, rng):
        self.frames = rng.integers(0, 256, (STORED, SIZE, SIZE, 3), dtype=np.uint8)
        corners = rng.random((RECORDS, BOXES, 2), dtype=np.float32) * 0.8
        self.boxes = np.concatenate([corners, 0.05 + 0.15 * rng.random((RECORDS, BOXES, 2))], 2)
        self.labels = rng.integers(0, 2, (RECORDS, BOXES))

    def __len__(self):
        return RECORDS

    def read(self, index):
        return self.frames[index % STORED], self.boxes[index], self.labels[index]


class AugmentedView(Dataset):
    def __init__(self, records, parts=4, strategy="listed"):
        self.records, self.parts, self.strategy = records, parts, strategy

    def __len__(self):
        return len(self.records)

    def partners(self, idx):
        if self.strategy == "listed":
            others = [i for i in range(len(self)) if i != idx]
            return random.sample(others, self.parts - 1)
        picked = set()
        while len(picked) < self.parts - 1:
            i = random.randrange(len(self))
            if i != idx:
                picked.add(i)
        return list(picked)

    def __getitem__(self, idx):
        canvas = np.zeros((2 * SIZE, 2 * SIZE, 3), np.float32)
        target = np.zeros((2, GRID, GRID), np.float32)
        for part, index in enumerate([idx, *self.partners(idx)]):
            frame, boxes, labels = self.records.read(index)
            row, column = divmod(part, 2)
            gain = np.float32(random.uniform(0.7, 1.3) / 255)
            canvas[row * SIZE : (row + 1) * SIZE, column * SIZE : (column + 1) * SIZE] = frame * gain
            centres = (boxes[:, :2] + boxes[:, 2:] / 2 + (column, row)) / 2
            cells = (centres.clip(0, 0.999) * GRID).astype(int)
            target[labels, cells[:, 1], cells[:, 0]] = 1
        if random.random() < 0.5:
            canvas, target = canvas[:, ::-1], target[:, :, ::-1]
        image = np.ascontiguousarray(canvas.transpose(2, 0, 1))
        return torch.from_numpy(image), torch.from_numpy(np.ascontiguousarray(target))


class BayFinder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 3
        for out in (16, 32, 48):
            layers += [nn.Conv2d(width, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            width = out
        self.body = nn.Sequential(*layers, nn.Conv2d(width, 64, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(64, 2, 1)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(0)
    random.seed(0)
    strategy = "listed" if VARIANT == "a" else "drawn"
    data = AugmentedView(ParkingRecords(np.random.default_rng(0)), strategy=strategy)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=0)
    model = BayFinder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = 0.0
    for step, (images, targets) in enumerate(loader):
        if step == 5:
            start = time.perf_counter()
        if step == STEPS:
            break
        logits = model(images)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            found += ((logits > 0) & (targets > 0)).sum().item() / targets.sum().item()
    print(f"loss {loss.item():.4f} recall {found / STEPS:.3f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
