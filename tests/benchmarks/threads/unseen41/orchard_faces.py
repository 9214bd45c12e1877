"""Classifies photos of fruit with a residual network; crops, mirrors and brightens the photos on the way."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 85))
BATCH = int(os.environ.get("BATCH", 128))
PHOTOS = int(os.environ.get("PHOTOS", 1024))
FULL = int(os.environ.get("FULL", 256))
CROP = int(os.environ.get("CROP", 224))
WIDTH = int(os.environ.get("WIDTH", 64))
WORKERS = int(os.environ.get("WORKERS", 4))
CLASSES = 100
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)
MEAN = torch.tensor([123.7, 116.3, 103.5], device=device).view(1, 3, 1, 1)
STD = torch.tensor([58.4, 57.1, 57.4], device=device).view(1, 3, 1, 1)


class FruitPhotos(Dataset):
    def __init__(self):
        rng = np.random.default_rng(9)
        self.photos = rng.integers(0, 256, (PHOTOS, FULL, FULL, 3), dtype=np.uint8)
        self.labels = rng.integers(0, CLASSES, PHOTOS)
        self.corner = rng.integers(0, FULL - CROP + 1, (PHOTOS, 2))
        self.mirror = rng.random(PHOTOS) < 0.5
        self.light = rng.uniform(0.7, 1.3, PHOTOS).astype(np.float32)

    def __len__(self):
        return PHOTOS

    def __getitem__(self, i):
        photo, (top, left) = self.photos[i], self.corner[i]
        if VARIANT == "a":
            photo = photo[top : top + CROP, left : left + CROP]
            if self.mirror[i]:
                photo = photo[:, ::-1]
            photo = np.clip(photo.astype(np.float32) * self.light[i], 0, 255).astype(np.uint8)
        plan = torch.tensor([top, left, int(self.mirror[i])])
        return torch.from_numpy(photo.transpose(2, 0, 1).copy()), int(self.labels[i]), plan, self.light[i]


def on_device(photos, plan, light):
    photos = photos.to(device, non_blocking=True)
    if VARIANT == "a":
        return photos.float()
    plan, light = plan.to(device, non_blocking=True), light.to(device, non_blocking=True)
    span = torch.arange(CROP, device=device)
    rows = plan[:, :1] + span
    cols = plan[:, 1:2] + torch.where(plan[:, 2:] > 0, CROP - 1 - span, span)
    which = torch.arange(len(photos), device=device).view(-1, 1, 1)
    cut = photos.permute(0, 2, 3, 1)[which, rows[:, :, None], cols[:, None]].permute(0, 3, 1, 2).contiguous()
    return (cut.float() * light.view(-1, 1, 1, 1)).clamp(0, 255).to(torch.uint8).float()


class Narrowing(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        cout = 4 * mid
        self.body = nn.Sequential(
            nn.Conv2d(cin, mid, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid, mid, 3, stride, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.short = (
            nn.Identity()
            if cin == cout and stride == 1
            else nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
        )

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x), inplace=True)


def make_net(w):
    layers = [nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    cin = w
    for k, depth in enumerate((3, 4, 6, 3)):
        for d in range(depth):
            layers.append(Narrowing(cin, w * 2**k, 2 if d == 0 and k else 1))
            cin = 4 * w * 2**k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, CLASSES))


def main():
    data = FruitPhotos()
    sampler = RandomSampler(
        data, replacement=True, num_samples=STEPS * BATCH, generator=torch.Generator().manual_seed(3)
    )
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=WORKERS, pin_memory=device == "cuda")
    net = make_net(WIDTH).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.002, momentum=0.9, weight_decay=1e-4)
    warm = min(10, STEPS // 2)
    for step, (photos, labels, plan, light) in enumerate(loader):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        x = (on_device(photos, plan, light) - MEAN) / STD
        loss = F.cross_entropy(net(x), labels.to(device, non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - t0
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
