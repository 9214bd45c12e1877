"""A one-stage detector of fruit in orchards: anchors, focal loss, smooth L1."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
BATCH = int(os.environ.get("BATCH", 8))
SIDE = int(os.environ.get("SIDE", 512))
WIDTH = int(os.environ.get("WIDTH", 96))
CLASSES = int(os.environ.get("CLASSES", 40))
STRIDES, SHAPES, FRUIT = (8, 16, 32, 64, 128), 9, 12
device = torch.device(os.environ.get("DEVICE", "cuda"))


def conv(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU(inplace=True)
    )


class FruitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv(3, WIDTH // 2, 2), conv(WIDTH // 2, WIDTH, 2), conv(WIDTH, WIDTH))
        self.levels = nn.ModuleList(
            [nn.Sequential(conv(WIDTH, WIDTH, 2), conv(WIDTH, WIDTH)) for _ in STRIDES]
        )
        self.tower = nn.Sequential(conv(WIDTH, WIDTH), conv(WIDTH, WIDTH))
        self.classify = nn.Conv2d(WIDTH, SHAPES * CLASSES, 3, padding=1)
        self.place = nn.Conv2d(WIDTH, SHAPES * 4, 3, padding=1)
        nn.init.constant_(self.classify.bias, -4.0)

    def forward(self, images):
        x, scores, moves = self.stem(images), [], []
        for level in self.levels:
            x = level(x)
            y = self.tower(x)
            scores.append(self.classify(y).permute(0, 2, 3, 1).reshape(len(y), -1, CLASSES))
            moves.append(self.place(y).permute(0, 2, 3, 1).reshape(len(y), -1, 4))
        return torch.cat(scores, 1).float().sigmoid(), torch.cat(moves, 1).float()


def make_anchors():
    anchors = []
    for stride in STRIDES:
        at = (torch.arange(SIDE // stride) + 0.5) * stride
        y, x = torch.meshgrid(at, at, indexing="ij")
        for scale in (1, 2 ** (1 / 3), 2 ** (2 / 3)):
            for ratio in (0.7, 1.0, 1.4):
                w, h = 4 * stride * scale * ratio, 4 * stride * scale / ratio
                anchors.append(torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1).reshape(-1, 4))
    return torch.cat(anchors)


def overlaps(a, b):
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    return shared / ((a[:, 2:] - a[:, :2]).prod(-1)[:, None] + (b[:, 2:] - b[:, :2]).prod(-1) - shared)


class FocalLoss(nn.Module):
    def forward(self, scores, moves, anchors, boxes, labels, alpha=0.25, gamma=2.0):
        found, placed = [], []
        for j in range(len(scores)):
            classification = scores[j].clamp(1e-4, 1 - 1e-4)
            best, which = overlaps(anchors, boxes[j]).max(1)
            if VARIANT == "a":
                targets = (torch.ones(classification.shape) * -1).to(classification.device)
            else:
                targets = torch.ones_like(classification) * -1
            targets = torch.where((best < 0.4)[:, None], torch.zeros_like(targets[:1]), targets)
            positive = best >= 0.5
            wanted = F.one_hot(labels[j][which], CLASSES).float()
            targets = torch.where(positive[:, None], wanted, targets)
            if VARIANT == "a":
                alpha_factor = torch.ones(targets.shape).to(targets.device) * alpha
            else:
                alpha_factor = torch.ones_like(targets) * alpha
            alpha_factor = torch.where(targets == 1, alpha_factor, 1 - alpha_factor)
            away = torch.where(targets == 1, 1 - classification, classification)
            bce = -(targets * classification.log() + (1 - targets) * (1 - classification).log())
            cls_loss = alpha_factor * away.pow(gamma) * bce
            if VARIANT == "a":
                zeros = torch.zeros(cls_loss.shape).to(cls_loss.device)
            else:
                zeros = torch.zeros_like(cls_loss)
            cls_loss = torch.where(targets != -1, cls_loss, zeros)
            count = positive.sum().clamp(min=1)
            found.append(cls_loss.sum() / count)
            offset = (boxes[j][which] - anchors) / SIDE
            gap = F.smooth_l1_loss(moves[j], offset, reduction="none").sum(1)
            placed.append((gap * positive).sum() / count)
        return torch.stack(found).mean() + torch.stack(placed).mean()


def main():
    torch.manual_seed(61)
    model, criterion = FruitNet().to(device), FocalLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    anchors = make_anchors().to(device)
    images = torch.rand(2, BATCH, 3, SIDE, SIDE, device=device)
    corner = torch.rand(2, BATCH, FRUIT, 2, device=device) * SIDE * 0.8
    boxes = torch.cat([corner, corner + SIDE * (0.05 + 0.15 * torch.rand_like(corner))], -1)
    labels = torch.randint(0, CLASSES, (2, BATCH, FRUIT), device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        i = step % 2
        with torch.autocast(device.type, torch.bfloat16):
            scores, moves = model(images[i])
        loss = criterion(scores, moves, anchors, boxes[i], labels[i])
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
