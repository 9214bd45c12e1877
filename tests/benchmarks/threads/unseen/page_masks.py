"""Finds lines of handwriting on pages: one mask per line."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 80))
SIZE, MOST = 160, 6


class Pages(Dataset):
    def __init__(self, count=400):
        rng = np.random.default_rng(0)
        self.pages = rng.random((count, SIZE, SIZE), dtype=np.float32)
        self.lines = [rng.integers(4, SIZE - 12, rng.integers(3, MOST + 1)) for _ in range(count)]

    def __len__(self):
        return len(self.pages)

    def __getitem__(self, i):
        boxes, masks = [], []
        for top in self.lines[i]:
            mask = np.zeros((SIZE, SIZE), dtype=np.uint8)
            mask[top : top + 8, 8:-8] = 1
            rows, columns = np.where(mask)
            boxes.append([columns.min(), rows.min(), columns.max(), rows.max()])
            masks.append(mask)
        if VARIANT == "b":
            masks = np.array(masks)
        return {
            "image": torch.from_numpy(self.pages[i])[None],
            "boxes": torch.as_tensor(np.array(boxes), dtype=torch.float32),
            "masks": torch.as_tensor(masks, dtype=torch.uint8),
        }


class LineNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.mask = nn.Sequential(nn.Conv2d(2 * width, 16, 1), nn.PixelShuffle(4))
        self.box = nn.Conv2d(2 * width, 4, 1)

    def forward(self, images):
        x = self.body(images)
        return self.mask(x), self.box(x).mean((2, 3))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Pages(), batch_size=4, shuffle=True, collate_fn=list)
    model = LineNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=5e-4)
    step = 0
    while step < STEPS:
        for targets in loader:
            if step == 3:
                start = time.perf_counter()
            masks, boxes = model(torch.stack([t["image"] for t in targets]))
            wanted = torch.stack([t["masks"].amax(0) for t in targets])[:, None].float()
            around = torch.stack([t["boxes"].mean(0) for t in targets]) / SIZE
            loss = nn.functional.binary_cross_entropy_with_logits(masks, wanted)
            loss = loss + nn.functional.smooth_l1_loss(boxes, around)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 3):.2f} ms per step")


if __name__ == "__main__":
    main()
