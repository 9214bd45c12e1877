"""Strokes of swimmers, told apart in short clips from a pool's archive of compressed pictures."""

import io
import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 240))
BATCH = int(os.environ.get("BATCH", 24))
SIDE = int(os.environ.get("SIDE", 160))
WIDTH = int(os.environ.get("WIDTH", 192))
LENGTH = int(os.environ.get("LENGTH", 48))
WORKERS = int(os.environ.get("WORKERS", 12))
CLIPS, TAKEN, STROKES = 48, 8, 5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def film(rng):
    """The pictures of one swimmer: a body on water that moves with the stroke."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE
    water = 20 * rng.standard_normal((SIDE, SIDE, 1)).astype(np.float32)
    stroke, pictures = int(rng.integers(STROKES)), []
    for t in range(LENGTH):
        wave = np.sin(0.2 * (stroke + 1) * t + 8 * columns) * np.exp(-20 * (rows - 0.5) ** 2)
        shades = water + 120 + 90 * wave[..., None] * np.array([1.0, 0.6, 0.3], np.float32)
        file = io.BytesIO()
        Image.fromarray(shades.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        pictures.append(file.getvalue())
    return pictures, stroke


class Reader:
    """A film and its pictures, by number."""

    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def picture(self, t):
        return np.asarray(Image.open(io.BytesIO(self.pictures[t])).convert("RGB"))

    def read(self):
        return np.stack([self.picture(t) for t in range(len(self))])

    def get_batch(self, moments):
        return np.stack([self.picture(t) for t in moments])


class Strokes(Dataset):
    def __init__(self):
        rng = np.random.default_rng(3)
        self.films = [film(rng) for _ in range(CLIPS)]

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, item):
        rng = np.random.default_rng(item)
        pictures, stroke = self.films[int(rng.integers(CLIPS))]
        reader = Reader(pictures)
        edges = np.linspace(0, len(reader), TAKEN + 1).astype(int)
        moments = [int(rng.integers(a, b)) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        clip = reader.get_batch(moments) if VARIANT == "b" else reader.read()[moments]
        if rng.random() < 0.5:
            clip = clip[:, :, ::-1].copy()
        return torch.from_numpy(clip).permute(3, 0, 1, 2), stroke


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.space = nn.Conv3d(before, after, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(after, after, (3, 1, 1), padding=(1, 0, 0), bias=False)
        self.norm1, self.norm2 = nn.BatchNorm3d(after), nn.BatchNorm3d(after)

    def forward(self, x):
        return F.relu(self.norm2(self.time(F.relu(self.norm1(self.space(x))))))


def main():
    torch.manual_seed(41)
    sizes = (WIDTH // 2, WIDTH // 2, WIDTH, 2 * WIDTH, 4 * WIDTH)
    blocks = [Block(a, b, 1 + (k != 1)) for k, (a, b) in enumerate(zip((3, *sizes[:-1]), sizes, strict=True))]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(sizes[-1], STROKES)).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Strokes(), BATCH, num_workers=WORKERS, pin_memory=device.type == "cuda")
    warm = min(24, STEPS // 2)
    for step, (clips, strokes) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        clips = clips.to(device, non_blocking=True).float() / 255 - 0.5
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(clips)
        loss = F.cross_entropy(scores.float(), strokes.to(device, non_blocking=True))
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
