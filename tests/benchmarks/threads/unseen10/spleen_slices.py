"""Outlines the spleen in slices of CT volumes with a small 2D U-Net."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 900))
PATIENTS, DEPTH, SIDE, PATCH, BATCH = 30, 40, 136, 72, 4


def scan(folder):
    """Writes volumes as the preprocessing leaves them: scaled, with the outline as second channel."""
    rng = np.random.default_rng(22)
    z, y, x = np.mgrid[-1 : 1 : DEPTH * 1j, -1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j].astype(np.float32)
    for patient in range(PATIENTS):
        a, b, c = rng.uniform(-0.3, 0.3, 3)
        organ = (z - a) ** 2 / 0.2 + (y - b) ** 2 / 0.06 + (x - c) ** 2 / 0.04 < 1
        body = y**2 / 0.7 + x**2 / 0.9 < 1
        image = np.where(body, 0.2 + 0.6 * organ, -1.5)
        image = image + 0.3 * rng.standard_normal(image.shape) * body
        volume = np.stack([np.round(image, 2), organ]).astype(np.float32)
        if VARIANT == "a":
            np.savez_compressed(folder / f"case_{patient:03}.npz", data=volume)
        else:
            np.save(folder / f"case_{patient:03}.npy", volume)


def open_case(path):
    if path.suffix == ".npz":
        return np.load(path)["data"]
    return np.load(path, mmap_mode="r")


class Slices(Dataset):
    """A random patch of a random slice, every third with the organ in its middle."""

    def __init__(self, folder):
        self.files = sorted(folder.iterdir())

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        case = open_case(self.files[rng.integers(len(self.files))])
        depth = rng.integers(DEPTH // 4, 3 * DEPTH // 4)
        top, left = rng.integers(0, SIDE - PATCH + 1, 2)
        if i % 3 == 0:
            rows, columns = np.nonzero(case[1, depth])
            if len(rows):
                top, left = (int(np.clip(p.mean() - PATCH / 2, 0, SIDE - PATCH)) for p in (rows, columns))
        patch = np.array(case[:, depth, top : top + PATCH, left : left + PATCH])
        if rng.random() < 0.5:
            patch = patch[:, :, ::-1]
        image = patch[0] * rng.uniform(0.8, 1.2) + rng.normal(0, 0.1)
        return torch.from_numpy(image.astype(np.float32))[None], torch.from_numpy(patch[1].astype(np.int64))


def block(inputs, outputs):
    layers = []
    for n in (inputs, outputs):
        norm = nn.InstanceNorm2d(outputs, affine=True)
        layers += [nn.Conv2d(n, outputs, 3, padding=1), norm, nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths=(8, 16, 32)):
        super().__init__()
        self.down = nn.ModuleList([block(a, b) for a, b in zip((1, *widths), widths, strict=False)])
        self.up = nn.ModuleList([block(a + b, a) for a, b in zip(widths, widths[1:], strict=False)])
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = layer(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for layer, side in zip(reversed(self.up), reversed(kept[:-1]), strict=True):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2.0), side], 1))
        return self.head(x)


def dice_loss(scores, wanted):
    share = scores.softmax(1)[:, 1]
    both = (share * wanted).sum((1, 2))
    return 1 - ((2 * both + 1) / (share.sum((1, 2)) + wanted.sum((1, 2)) + 1)).mean()


def main():
    torch.manual_seed(22)
    with tempfile.TemporaryDirectory() as name:
        scan(Path(name))
        loader = DataLoader(Slices(Path(name)), batch_size=BATCH, num_workers=1)
        model = UNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
        warm = min(10, STEPS // 2)
        for step, (images, outlines) in enumerate(loader):
            if step == warm:
                start = time.perf_counter()
            scores = model(images)
            loss = F.cross_entropy(scores, outlines) + dice_loss(scores, outlines)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 12)
            optimizer.step()
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
