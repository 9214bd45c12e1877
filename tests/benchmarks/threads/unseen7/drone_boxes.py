"""A detector of cars in drone images, trained on scenes drawn on the spot."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 24))
SIDE = int(os.environ.get("SIDE", 256))
WIDTH = int(os.environ.get("WIDTH", 128))
WORKERS = int(os.environ.get("WORKERS", 12))
CLASSES, STRIDE = 12, 8
device = torch.device(os.environ.get("DEVICE", "cuda"))


class DroneScenes(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        count = int(torch.randint(4, 20, (1,), generator=g))
        centers = torch.rand(count, 2, generator=g)
        sizes = 0.05 + 0.15 * torch.rand(count, 2, generator=g)
        labels = torch.randint(0, CLASSES, (count,), generator=g)
        image = torch.randint(0, 256, (3, SIDE, SIDE), dtype=torch.uint8, generator=g)
        for (x, y), (w, h), label in zip(centers.tolist(), sizes.tolist(), labels.tolist()):
            top, left = int(y * SIDE), int(x * SIDE)
            image[label % 3, top : top + int(h * SIDE), left : left + int(w * SIDE)] = 20 * label
        target = {
            "boxes": torch.cat([centers, sizes], 1),
            "labels": labels,
            "area": sizes.prod(1),
            "iscrowd": torch.zeros(count, dtype=torch.int64),
            "image_id": torch.tensor([index]),
            "orig_size": torch.tensor([[SIDE, SIDE]]),
            "size": torch.tensor([[SIDE, SIDE]]),
        }
        return image, target


def collate_scenes(samples):
    images = torch.stack([image for image, _ in samples])
    targets = [target for _, target in samples]
    if VARIANT == "a":
        return images, targets
    counts = {key: [len(t[key]) for t in targets] for key in targets[0]}
    packed = {key: torch.cat([t[key] for t in targets]) for key in targets[0]}
    return images, (packed, counts)


def targets_to(targets):
    if isinstance(targets, list):
        return [{k: v.to(device, non_blocking=True) for k, v in t.items()} for t in targets]
    packed, counts = targets
    parts = {k: v.to(device, non_blocking=True).split(counts[k]) for k, v in packed.items()}
    return [dict(zip(parts, values)) for values in zip(*parts.values())]


class DroneNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, WIDTH // 2, WIDTH, 2 * WIDTH]
        self.stem = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.SiLU())
                for i, o in zip(widths, widths[1:])
            ]
        )
        self.body = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, 1, 1), nn.BatchNorm2d(2 * WIDTH), nn.SiLU())
                for _ in range(6)
            ]
        )
        self.head = nn.Conv2d(2 * WIDTH, CLASSES + 4, 1)

    def forward(self, images):
        x = self.stem(images)
        for layer in self.body:
            x = x + layer(x)
        return self.head(x).permute(0, 2, 3, 1)


def detection_loss(outputs, targets, owners):
    cells = outputs.shape[1]
    boxes = torch.cat([t["boxes"] for t in targets])
    labels = torch.cat([t["labels"] for t in targets])
    areas = torch.cat([t["area"] for t in targets])
    spots = (boxes[:, :2] * cells).long().clamp(0, cells - 1)
    predicted = outputs[owners, spots[:, 1], spots[:, 0]]
    away = F.smooth_l1_loss(predicted[:, CLASSES:], boxes, reduction="none").sum(1)
    heat = torch.zeros_like(outputs[..., :CLASSES])
    heat[owners, spots[:, 1], spots[:, 0], labels] = 1.0
    found = F.binary_cross_entropy_with_logits(outputs[..., :CLASSES], heat)
    return found + (away * (2 - areas)).mean()


def main():
    torch.manual_seed(5)
    model = DroneNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(
        DroneScenes(), BATCH, shuffle=False, num_workers=WORKERS, collate_fn=collate_scenes,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
    warm = min(20, STEPS // 2)
    for step, (images, targets) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        images = images.to(device, non_blocking=True).float().div_(255)
        targets = targets_to(targets)
        owners = [i for i, t in enumerate(targets) for _ in range(len(t["labels"]))]
        owners = torch.tensor(owners, device=device)
        loss = detection_loss(model(images), targets, owners)
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
