"""Detection in one stage: boxes from anchors at three scales, on synthetic pictures."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

CLASSES, MOST = 80, 50
SIZE = 96 if SMALL else 608
BATCH = 2 if SMALL else 8
WIDTH = 4 if SMALL else 24
PICTURES = 8 if SMALL else 64
IGNORE = 0.7
ANCHORS = [(10, 13), (16, 30), (33, 23), (30, 61), (62, 45), (59, 119), (116, 90), (156, 198), (373, 326)]


def boxes_iou(boxes, others, corners):
    """Overlap of each box with each other box; given by corners, or by centres and sizes."""
    if corners:
        top_left = torch.max(boxes[:, None, :2], others[:, :2])
        bottom_right = torch.min(boxes[:, None, 2:], others[:, 2:])
        area = torch.prod(boxes[:, 2:] - boxes[:, :2], 1)
        area_other = torch.prod(others[:, 2:] - others[:, :2], 1)
    else:
        half, half_other = boxes[:, None, 2:] / 2, others[:, 2:] / 2
        top_left = torch.max(boxes[:, None, :2] - half, others[:, :2] - half_other)
        bottom_right = torch.min(boxes[:, None, :2] + half, others[:, :2] + half_other)
        area, area_other = torch.prod(boxes[:, 2:], 1), torch.prod(others[:, 2:], 1)
    inside = (top_left < bottom_right).type(top_left.dtype).prod(dim=2)
    common = torch.prod(bottom_right - top_left, 2) * inside
    return common / (area[:, None] + area_other - common)


def conv(inputs, outputs, kernel, stride=1):
    """Convolution, normalisation, activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(0.1),
    )


class Residual(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(conv(channels, channels // 2, 1), conv(channels // 2, channels, 3))

    def forward(self, x):
        return x + self.layers(x)


class DetectionLayer(nn.Module):
    """Boxes of one scale, and their loss when labels are given."""

    def __init__(self, channels, mask, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels, 3 * (5 + CLASSES), 1)
        self.mask, self.stride = mask, stride
        self.all_anchors = [(w / stride, h / stride) for w, h in ANCHORS]
        self.anchors = [self.all_anchors[i] for i in mask]
        self.reference = torch.zeros(len(ANCHORS), 4)
        self.reference[:, 2:] = torch.tensor(self.all_anchors)

    def forward(self, x, labels=None):
        raw = self.conv(x)
        batch, _, size, _ = raw.shape
        raw = raw.view(batch, 3, 5 + CLASSES, size, size).permute(0, 1, 3, 4, 2)
        xy, wh, rest = torch.sigmoid(raw[..., :2]), raw[..., 2:4], torch.sigmoid(raw[..., 4:])
        with torch.no_grad():
            column = torch.arange(size, device=x.device, dtype=xy.dtype)
            anchors = torch.tensor(self.anchors, device=x.device).view(1, 3, 1, 1, 2)
            shift = torch.stack(torch.meshgrid(column, column, indexing="xy"), dim=-1)
            pred = torch.cat([xy + shift, wh.clamp(max=8).exp() * anchors], dim=-1)
        if labels is None:
            return torch.cat([pred * self.stride, rest], dim=-1).view(batch, -1, 5 + CLASSES)
        if VARIANT == "a":
            pred = pred.cpu()
        where, scale, target, objects = self.assign(pred, labels, batch, size, x.device)
        centre = target[..., :2] * where
        loss_xy = F.binary_cross_entropy(xy * where, centre, weight=scale**2, reduction="sum")
        loss_wh = ((wh - target[..., 2:4]) * where * scale).pow(2).sum() / 2
        found = target[..., 4]
        loss_object = F.binary_cross_entropy(rest[..., 0] * objects, found * objects, reduction="sum")
        loss_class = F.binary_cross_entropy(rest[..., 1:] * where, target[..., 5:] * where, reduction="sum")
        return loss_xy + loss_wh + loss_object + loss_class

    def assign(self, pred, labels, batch, size, place):
        """Targets of each anchor: boxes of the labels go to their best anchors."""
        where = torch.zeros(batch, 3, size, size, 1, device=place)
        scale = torch.zeros(batch, 3, size, size, 2, device=place)
        target = torch.zeros(batch, 3, size, size, 5 + CLASSES, device=place)
        objects = torch.ones(batch, 3, size, size, device=place)
        counts = (labels.sum(dim=2) > 0).sum(dim=1).tolist()
        centres, sizes = labels[:, :, 1:3] * size, labels[:, :, 3:5] * size
        for b in range(batch):
            n = counts[b]
            truth = torch.zeros(n, 4)
            truth[:, 2:] = sizes[b, :n]
            best = boxes_iou(truth, self.reference, corners=True).argmax(dim=1).tolist()
            truth[:, :2] = centres[b, :n]
            overlap = boxes_iou(pred[b].view(-1, 4), truth.to(pred.device), corners=False)
            ignored = (overlap.max(dim=1)[0] > IGNORE).view(pred[b].shape[:3])
            objects[b] = 1.0 - ignored.float()
            for t in range(n):
                if best[t] not in self.mask:
                    continue
                a = self.mask.index(best[t])
                i, j = int(centres[b, t, 0]), int(centres[b, t, 1])
                wanted = torch.zeros(5 + CLASSES)
                wanted[:2] = centres[b, t] - centres[b, t].floor()
                wanted[2:4] = torch.log(sizes[b, t] / torch.tensor(self.anchors[a]) + 1e-16)
                wanted[4] = 1
                wanted[5 + int(labels[b, t, 0])] = 1
                objects[b, a, j, i] = 1
                where[b, a, j, i] = 1
                target[b, a, j, i] = wanted.to(place, non_blocking=True)
                scale[b, a, j, i] = float(2 - labels[b, t, 3] * labels[b, t, 4]) ** 0.5
        return where, scale, target, objects


class Detector(nn.Module):
    """A residual backbone and detection layers at three scales."""

    def __init__(self):
        super().__init__()
        sizes = [WIDTH * 2**i for i in range(6)]
        stages = [conv(3, WIDTH, 3)]
        for i, depth in enumerate((1, 1, 2, 2, 1)):
            blocks = [Residual(sizes[i + 1]) for _ in range(depth)]
            stages.append(nn.Sequential(conv(sizes[i], sizes[i + 1], 3, 2), *blocks))
        self.stages = nn.ModuleList(stages)
        self.neck = nn.ModuleList([conv(sizes[5], sizes[5], 3), conv(sizes[5] + sizes[4], sizes[4], 3)])
        self.neck.append(conv(sizes[4] + sizes[3], sizes[3], 3))
        masks = ([6, 7, 8], [3, 4, 5], [0, 1, 2])
        layers = [DetectionLayer(sizes[5 - i], mask, 32 // 2**i) for i, mask in enumerate(masks)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x, labels=None):
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        results = []
        for i, (neck, layer) in enumerate(zip(self.neck, self.layers)):
            x = maps[-1 - i] if i == 0 else torch.cat([F.interpolate(x, scale_factor=2), maps[-1 - i]], dim=1)
            x = neck(x)
            results.append(layer(x, labels))
        return sum(results) if labels is not None else torch.cat(results, dim=1)


def make_pictures():
    """Pictures of coloured boxes, with a table of class, centre and size for each."""
    rng = np.random.default_rng(11)
    pictures = rng.random((PICTURES, 3, SIZE, SIZE), dtype=np.float32) * 0.2
    labels = np.zeros((PICTURES, MOST, 5), dtype=np.float32)
    for picture, table in zip(pictures, labels):
        for row in range(int(rng.integers(5, 17))):
            kind, (w, h) = int(rng.integers(1, CLASSES)), np.exp(rng.uniform(-3.5, -0.9, 2))
            x, y = rng.uniform(w / 2, 1 - w / 2), rng.uniform(h / 2, 1 - h / 2)
            table[row] = kind, x, y, w, h
            left, top = int((x - w / 2) * SIZE), int((y - h / 2) * SIZE)
            picture[kind % 3, top : top + int(h * SIZE), left : left + int(w * SIZE)] = kind / CLASSES
    return torch.from_numpy(pictures), torch.from_numpy(labels)


def main():
    torch.manual_seed(0)
    pictures, labels = make_pictures()
    pictures = pictures.to(device)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1000) ** 4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        first = step * BATCH % PICTURES
        last = model(pictures[first : first + BATCH], labels[first : first + BATCH]) / BATCH
        optimizer.zero_grad()
        last.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        if step % 500 == 499:
            with torch.no_grad():
                sure = model(pictures[:BATCH])[..., 4].gt(0.5).sum().item()
            print(f"step {step + 1}: loss {last.item():.3f}, {sure} boxes above one half")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
