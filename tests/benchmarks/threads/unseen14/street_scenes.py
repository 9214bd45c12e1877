"""What is where in a street: every pixel of a photo gets one of 150 classes, most of which are rare."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 430))
BATCH = int(os.environ.get("BATCH", 16))
WIDTH = int(os.environ.get("WIDTH", 64))
SIDE = int(os.environ.get("SIDE", 256))
CLASSES = int(os.environ.get("CLASSES", 150))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Double(nn.Sequential):
    def __init__(self, before, after):
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )


class StreetNet(nn.Module):
    """A U-Net with four levels."""

    def __init__(self):
        super().__init__()
        widths = [WIDTH, 2 * WIDTH, 4 * WIDTH, 4 * WIDTH]
        self.down = nn.ModuleList(
            [Double(before, after) for before, after in zip([3, *widths[:-1]], widths, strict=True)]
        )
        self.up = nn.ModuleList(
            [Double(low + high, high) for low, high in zip(widths[:0:-1], widths[-2::-1], strict=True)]
        )
        self.head = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, x):
        levels = []
        for level, stage in enumerate(self.down):
            x = stage(F.max_pool2d(x, 2) if level else x)
            levels.append(x)
        levels.pop()
        for stage in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = stage(torch.cat([x, levels.pop()], 1))
        return self.head(x)


class FocalLoss(nn.Module):
    """Cross-entropy in which the pixels that are clear already count for less."""

    def __init__(self, alpha=0.5, gamma=2.0):
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, scores, labels):
        log_share = F.log_softmax(scores, 1)
        if VARIANT == "b":
            log_share = log_share.gather(1, labels[:, None])
        weight = torch.pow(1.0 - log_share.exp(), self.gamma)
        loss = -self.alpha * weight * log_share
        if VARIANT == "a":
            loss = loss * F.one_hot(labels, CLASSES).permute(0, 3, 1, 2).to(scores.dtype)
        return loss.sum(1).mean()


def streets(count):
    """Photos, and the class of each pixel."""
    ground = F.interpolate(torch.rand(count, 1, 8, 8), SIDE, mode="bilinear")
    labels = (ground[:, 0] ** 2 * CLASSES).long().clamp_(max=CLASSES - 1)
    photos = torch.cat([ground, ground.sin(), 1 - ground], 1) + 0.1 * torch.randn(count, 3, SIDE, SIDE)
    return photos.to(device), labels.to(device)


def main():
    torch.manual_seed(83)
    model = StreetNet().to(device, memory_format=torch.channels_last)
    focal = FocalLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    photos, labels = streets(4 * BATCH)
    photos = photos.contiguous(memory_format=torch.channels_last)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(photos[rows])
        loss = focal(scores.float(), labels[rows])
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
