"""Sorts product photos: JPEG files, cropped and flipped at random, by a small residual network."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
COUNT, SIDE, CLASSES, BATCH = 256, 160, 12, 32


def write_photos(folder):
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        coarse = Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8))
        coarse.resize((640, 480), Image.Resampling.BICUBIC).save(folder / f"{i:04}.jpg", quality=90)


class Photos(Dataset):
    def __init__(self, folder, repeats=40):
        self.paths = sorted(folder.glob("*.jpg")) * repeats

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB")
        left, top = (int(torch.randint(0, n, ())) for n in (160, 120))
        image = image.crop((left, top, left + 480, top + 360)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        x = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
        return (x.flip(2) if torch.rand(()) < 0.5 else x) - 0.5, i % CLASSES


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(x + self.body(x))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder))
        loader = DataLoader(
            Photos(Path(folder)), batch_size=BATCH, shuffle=True, drop_last=True, pin_memory=True,
            num_workers=12 if VARIANT == "b" else 2,
        )  # fmt: skip
        model = nn.Sequential(
            nn.Conv2d(3, 64, 7, 4, 3), nn.ReLU(), *(Residual(64) for _ in range(6)), nn.Conv2d(64, 128, 3, 2, 1),
            nn.ReLU(), *(Residual(128) for _ in range(6)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(128, CLASSES),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        for step, (x, y) in enumerate(loader):
            if step == 30:
                torch.cuda.synchronize()
                start = time.perf_counter()
            if step == STEPS:
                break
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
        spent = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * spent / (STEPS - 30):.2f} ms per step")


if __name__ == "__main__":
    main()
