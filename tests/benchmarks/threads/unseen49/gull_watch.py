"""Train a small one-stage detector on grey pictures with boxes, tested at the end of each short epoch."""

from __future__ import annotations

import math
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))
SIZE, STRIDE, CLASSES = 96, 8, 4
ANCHORS = torch.tensor([[12.0, 12.0], [24.0, 24.0]])


def write_pictures(folder: str, count: int, seed: int) -> list[str]:
    """Writes pictures as arrays, and beside each a text of its boxes; returns the pictures' paths."""
    rng = np.random.default_rng(seed)
    paths = []
    for i in range(count):
        image = (rng.random((SIZE, SIZE)) * 60).astype(np.uint8)
        lines = []
        for _ in range(rng.integers(1, 5)):
            kind = int(rng.integers(CLASSES))
            w, h = rng.integers(10, 30, size=2)
            left, top = rng.integers(0, SIZE - w), rng.integers(0, SIZE - h)
            image[top : top + h, left : left + w] = 90 + 40 * kind
            box = ((left + w / 2) / SIZE, (top + h / 2) / SIZE, w / SIZE, h / SIZE)
            lines.append(f"{kind} " + " ".join(f"{v:.6f}" for v in box))
        paths.append(os.path.join(folder, f"{seed}_{i:04d}.npy"))
        np.save(paths[-1], image)
        with open(paths[-1].replace(".npy", ".txt"), "w") as file:
            file.write("\n".join(lines))
    return paths


class LoadImagesAndLabels(Dataset):
    """Reads all labels at the start; pictures are kept in memory."""

    def __init__(self, paths: list[str], augment: bool):
        self.paths, self.augment = paths, augment
        self.labels = []
        for path in paths:
            with open(path.replace(".npy", ".txt")) as file:
                rows = [[float(v) for v in line.split()] for line in file.read().splitlines()]
            self.labels.append(np.array(rows, dtype=np.float32))
        self.images = [np.load(path) for path in paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        image, labels = self.images[index], self.labels[index]
        if self.augment and torch.rand(()) < 0.5:
            image, labels = image[:, ::-1].copy(), labels.copy()
            labels[:, 1] = 1 - labels[:, 1]
        return torch.from_numpy(image)[None], torch.from_numpy(labels)

    @staticmethod
    def collate_fn(items: list):
        images, labels = zip(*items)
        rows = [F.pad(label, (1, 0), value=i) for i, label in enumerate(labels)]
        return torch.stack(images), torch.cat(rows)


class Detector(nn.Module):
    """Convolutions down to an eighth of the size, then one head for all anchors."""

    def __init__(self, width: int = 24):
        super().__init__()
        layers, inside = [], 1
        for outside, stride in ((width, 2), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1)):
            layers += [
                nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outside),
                nn.SiLU(),
            ]
            inside = outside
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(inside, len(ANCHORS) * (5 + CLASSES), 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = self.head(self.body(images.float() / 255))
        n, _, rows, cols = out.shape
        return out.view(n, len(ANCHORS), 5 + CLASSES, rows, cols).permute(0, 1, 3, 4, 2)


def build_targets(labels: torch.Tensor):
    """The cells and anchors that answer for each box, and what they ought to say."""
    grid = SIZE // STRIDE
    size = labels[:, 4:6] * SIZE
    ratio = size[:, None] / ANCHORS[None]
    box, anchor = torch.nonzero(torch.maximum(ratio, 1 / ratio).amax(2) < 2.5, as_tuple=True)
    centre = labels[box, 2:4] * grid
    cell = centre.long().clamp(0, grid - 1)
    image, kind = labels[box, 0].long(), labels[box, 1].long()
    return image, anchor, cell[:, 1], cell[:, 0], centre - cell, (size[box] / ANCHORS[anchor]).log(), kind


def compute_loss(pred: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    image, anchor, row, col, offset, scale, kind = build_targets(labels)
    chosen = pred[image, anchor, row, col]
    wanted = torch.zeros_like(pred[..., 4])
    wanted[image, anchor, row, col] = 1.0
    box_loss = F.mse_loss(chosen[:, :2].sigmoid(), offset) + F.mse_loss(chosen[:, 2:4], scale)
    kind_loss = F.cross_entropy(chosen[:, 5:], kind)
    return box_loss + 20 * F.binary_cross_entropy_with_logits(pred[..., 4], wanted) + 0.5 * kind_loss


def create_dataloader(paths: list[str], batch_size: int, augment: bool) -> DataLoader:
    dataset = LoadImagesAndLabels(paths, augment)
    collate_fn = LoadImagesAndLabels.collate_fn
    return DataLoader(dataset, batch_size, shuffle=augment, drop_last=augment, collate_fn=collate_fn)


@torch.no_grad()
def test(model: nn.Module, paths: list[str], dataloader: DataLoader | None = None) -> dict:
    """Loss on held-out pictures, and the share of boxes whose cell is sure of itself and of the kind."""
    if dataloader is None:
        dataloader = create_dataloader(paths, 32, augment=False)
    model.eval()
    losses, right, count = [], 0, 0
    for images, labels in dataloader:
        pred = model(images)
        losses.append(compute_loss(pred, labels).item())
        image, anchor, row, col, _, _, kind = build_targets(labels)
        chosen = pred[image, anchor, row, col]
        right += int(((chosen[:, 4] > 0) & (chosen[:, 5:].argmax(1) == kind)).sum())
        count += len(kind)
    model.train()
    return {"test_loss": sum(losses) / len(losses), "recall": right / count}


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        train_paths = write_pictures(folder, 800, seed=1)
        test_paths = write_pictures(folder, 64, seed=2)
        loader = create_dataloader(train_paths, 16, augment=True)
        test_loader = None if VARIANT == "a" else create_dataloader(test_paths, 32, augment=False)
        model = Detector()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        total = max(STEPS, 400)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda s: min(1.0, (s + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * s / total))
        )
        warm, step, epoch = min(10, STEPS // 2), 0, 0
        while step < STEPS:
            for images, labels in loader:
                if step == warm:
                    start = time.perf_counter()
                loss = compute_loss(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                scheduler.step()
                step += 1
                if step == STEPS:
                    break
            epoch += 1
            results = test(model, test_paths, test_loader)
            print(f"epoch {epoch} " + " ".join(f"{key} {value:.4f}" for key, value in results.items()))
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
