"""Outlines jars and tins in photos of pantry shelves; photos and outlines lie in one folder each."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 170))
SHELVES, SIDE, BATCH = 3000, 40, 12


def write_shelves(folder):
    """Photos of round things on boards, with their outlines, as the annotation tool exports them."""
    rng = np.random.default_rng(41)
    (folder / "photos").mkdir()
    (folder / "outlines").mkdir()
    y, x = np.mgrid[:SIDE, :SIDE]
    records = []
    for n in range(SHELVES):
        a, b, r = rng.integers(10, 30), rng.integers(10, 30), rng.integers(4, 10)
        inside = (x - a) ** 2 + (y - b) ** 2 < r * r
        photo = np.clip(90 + 60 * inside[..., None] + rng.integers(-40, 40, (SIDE, SIDE, 3)), 0, 255)
        name = f"shelf{rng.integers(1 << 40):010x}{n:05d}"
        Image.fromarray(photo.astype(np.uint8)).save(folder / "photos" / f"{name}.png", compress_level=1)
        Image.fromarray((255 * inside).astype(np.uint8)).save(folder / "outlines" / f"{name}.png")
        records.append({"name": name, "file": f"C:/export/{name}.png"})
    return records


class Shelves(Dataset):
    def __init__(self, folder, records):
        self.photos, self.outlines, self.records = folder / "photos", folder / "outlines", records

    def __len__(self):
        return len(self.records)

    def locate(self, folder, record):
        if VARIANT == "a":
            return next(folder.glob(f"{record['name']}.*"))
        ending = record["file"].rsplit(".", 1)[-1]
        return folder / f"{record['name']}.{ending}"

    def __getitem__(self, n):
        record = self.records[n]
        photo = Image.open(self.locate(self.photos, record)).convert("RGB")
        outline = Image.open(self.locate(self.outlines, record))
        pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1).float() / 255 - 0.5
        return pixels, torch.from_numpy(np.array(outline) > 127).float()


def stage(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU()
    )


class Outliner(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.down1, self.down2 = stage(3, width), stage(width, 2 * width)
        self.bottom, self.up = stage(2 * width, 2 * width), stage(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        fine = self.down1(x)
        coarse = self.bottom(self.down2(F.max_pool2d(fine, 2)))
        coarse = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(self.up(torch.cat([fine, coarse], 1)))[:, 0]


def main():
    torch.manual_seed(41)
    folder = Path(tempfile.mkdtemp())
    records = write_shelves(folder)
    loader = DataLoader(Shelves(folder, records), batch_size=BATCH, shuffle=True, drop_last=True)
    model = Outliner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for photos, outlines in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.binary_cross_entropy_with_logits(model(photos), outlines)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    shutil.rmtree(folder)
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
