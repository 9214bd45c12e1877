"""Segments roofs in aerial tiles with a small U-Net and keeps the mean IoU of the epoch."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 80))
BATCH = int(os.environ.get("BATCH", 8))
SIZE = int(os.environ.get("SIZE", 512))
WIDTH = int(os.environ.get("WIDTH", 64))
TILES = int(os.environ.get("TILES", 64))
CLASSES = 2
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)


class TileIoU:
    """Counts of the confusion matrix, gathered over the epoch."""

    def __init__(self, labels):
        self.labels = np.asarray(labels)
        self.tn = self.fn = self.fp = self.tp = 0

    def add_arrays(self, actual, predicted):
        present = np.union1d(actual, predicted)
        assert np.isin(present, self.labels).all(), "labels are known"
        n = len(self.labels)
        matrix = np.bincount(n * actual.astype(np.int64) + predicted, minlength=n * n).reshape(n, n)
        self.tn += matrix[0, 0]
        self.fp += matrix[0, 1]
        self.fn += matrix[1, 0]
        self.tp += matrix[1, 1]

    def add_tensors(self, actual, predicted):
        ratio = predicted.reshape(-1).float() / actual.reshape(-1).float()
        self.tn += torch.sum(torch.isnan(ratio)).item()
        self.fp += torch.sum(ratio == float("inf")).item()
        self.fn += torch.sum(ratio == 0).item()
        self.tp += torch.sum(ratio == 1).item()

    def get(self):
        return np.nanmean([self.tn / (self.tn + self.fn + self.fp), self.tp / (self.tp + self.fn + self.fp)])


def block(cin, cout):
    layers = []
    for c in (cin, cout):
        layers += [nn.Conv2d(c, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class RoofNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.d1, self.d2, self.d3 = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.mid = block(4 * width, 4 * width)
        self.u3, self.u2 = block(8 * width, 2 * width), block(4 * width, width)
        self.u1 = block(2 * width, width)
        self.final = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        m = self.mid(F.max_pool2d(c, 2))
        y = self.u3(torch.cat([F.interpolate(m, scale_factor=2), c], 1))
        y = self.u2(torch.cat([F.interpolate(y, scale_factor=2), b], 1))
        y = self.u1(torch.cat([F.interpolate(y, scale_factor=2), a], 1))
        return self.final(y)


def make_tiles():
    g = torch.Generator().manual_seed(3)
    coarse = torch.rand(TILES, 1, SIZE // 32, SIZE // 32, generator=g)
    masks = (F.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")[:, 0] > 0.55).long()
    images = torch.randn(TILES, 3, SIZE, SIZE, generator=g) + masks[:, None].float()
    return images, masks


images, masks = make_tiles()
if device == "cuda":
    images, masks = images.pin_memory(), masks.pin_memory()
net = RoofNet(WIDTH).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, weight_decay=1e-6)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.7, 1.5])).to(device)
iou = TileIoU(range(CLASSES))
running_loss, seen = 0.0, 0
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    first = step * BATCH % (TILES - BATCH + 1)
    x = images[first : first + BATCH].to(device, non_blocking=True)
    y = masks[first : first + BATCH].to(device, non_blocking=True)
    optimizer.zero_grad()
    outputs = net(x)
    loss = criterion(outputs, y)
    loss.backward()
    optimizer.step()
    running_loss += loss.item()
    seen += BATCH
    for mask, output in zip(y, outputs):
        if VARIANT == "a":
            actual = mask.data.cpu().numpy()
            prediction = output.data.max(0)[1].cpu().numpy()
            iou.add_arrays(actual.ravel(), prediction.ravel())
        else:
            iou.add_tensors(mask, output.data.max(0)[1])
if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - t0
print(f"mean iou {iou.get():.4f}")
print(f"loss {running_loss / STEPS:.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
