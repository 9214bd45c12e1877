"""Names what each part of a street photo shows; the labels are drawn in the colours of the annotators."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 140))
PHOTOS, HEIGHT, WIDTH, CROP, BATCH, KINDS = 80, 144, 192, 128, 8, 10
PALETTE = np.random.default_rng(2).permutation(256)[: 3 * KINDS].reshape(KINDS, 3).astype(np.uint8)


def make_streets():
    """Photos of coloured blocks with noise, and their drawings."""
    rng = np.random.default_rng(12)
    photos = np.empty((PHOTOS, HEIGHT, WIDTH, 3), np.uint8)
    drawings = np.empty_like(photos)
    tint = rng.integers(40, 200, (KINDS, 3))
    for photo, drawing in zip(photos, drawings, strict=True):
        blocks = rng.integers(0, KINDS, (HEIGHT // 24, WIDTH // 24))
        kind = blocks.repeat(24, 0).repeat(24, 1)
        photo[:] = np.clip(tint[kind] + rng.normal(0, 20, (HEIGHT, WIDTH, 3)), 0, 255)
        drawing[:] = PALETTE[kind]
    return photos, drawings


def read_drawing(drawing):
    """The kind of each pixel."""
    kind = np.zeros(drawing.shape[:2], np.int64)
    for number, colour in enumerate(PALETTE):
        kind[np.all(drawing == colour, axis=-1)] = number
    return kind


class Streets(Dataset):
    def __init__(self, photos, drawings):
        self.photos = photos
        self.drawings = drawings if VARIANT == "a" else [read_drawing(d) for d in drawings]

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        photo = self.photos[index]
        kind = read_drawing(self.drawings[index]) if VARIANT == "a" else self.drawings[index]
        top = int(torch.randint(0, HEIGHT - CROP + 1, ()))
        left = int(torch.randint(0, WIDTH - CROP + 1, ()))
        photo = photo[top : top + CROP, left : left + CROP].transpose(2, 0, 1)
        kind = kind[top : top + CROP, left : left + CROP]
        if torch.rand(()) < 0.5:
            photo, kind = photo[:, :, ::-1], kind[:, ::-1]
        return photo.astype(np.float32) / 255, np.ascontiguousarray(kind)


class SceneNet(nn.Module):
    def __init__(self, width=60):
        super().__init__()
        self.into = nn.Conv2d(3, width, 4, stride=4)
        self.body = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(2 * width, KINDS, 1)

    def forward(self, photos):
        return self.head(self.body(self.into(photos)))


def main():
    torch.manual_seed(12)
    loader = DataLoader(Streets(*make_streets()), batch_size=BATCH, shuffle=True, drop_last=True)
    model = SceneNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for photos, kinds in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.cross_entropy(model(photos), kinds[:, 2::4, 2::4])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
