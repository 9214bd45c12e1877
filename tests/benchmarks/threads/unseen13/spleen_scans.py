"""Outlines an organ in scans of the belly, from small blocks cut out of the scans."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 130))
SCANS, SHAPE, SIDE, BATCH = 8, (80, 176, 176), 32, 4


def make_scan(rng):
    """A body of uneven grey in air, and an organ in it that is a little brighter."""
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n, dtype=np.float32) for n in SHAPE), indexing="ij")
    body = (x / 0.85) ** 2 + (y / 0.7) ** 2 < 1
    a, b, c = rng.uniform(-0.25, 0.25, 3)
    organ = ((z - a) / 0.5) ** 2 + ((y - b) / 0.2) ** 2 + ((x - c) / 0.25) ** 2 < 1
    image = rng.normal(0, 0.2, SHAPE).astype(np.float32) + 0.8 + 0.5 * organ
    return np.where(body, image.clip(0.01), 0).astype(np.float32), (organ & body).astype(np.uint8)


class Blocks(Dataset):
    """Blocks around a voxel of the organ, or around one of the rest of the body, as often as each other."""

    def __init__(self):
        rng = np.random.default_rng(13)
        self.scans = [make_scan(rng) for _ in range(SCANS)]
        self.known = {}

    def __len__(self):
        return SCANS * 40

    def candidates(self, which):
        image, organ = self.scans[which]
        inside = np.flatnonzero(organ)
        outside = np.flatnonzero((image > 0) & (organ == 0))
        return inside, outside

    def centre(self, which):
        if VARIANT == "a":
            inside, outside = self.candidates(which)
        else:
            if which not in self.known:
                self.known[which] = self.candidates(which)
            inside, outside = self.known[which]
        places = inside if torch.rand(()) < 0.5 else outside
        chosen = places[int(torch.randint(len(places), ()))]
        return np.unravel_index(chosen, SHAPE)

    def __getitem__(self, index):
        which = index % SCANS
        image, organ = self.scans[which]
        corner = [
            min(max(int(c) - SIDE // 2, 0), n - SIDE) for c, n in zip(self.centre(which), SHAPE, strict=True)
        ]
        box = tuple(slice(c, c + SIDE) for c in corner)
        block, mask = image[box], organ[box]
        for axis in range(3):
            if torch.rand(()) < 0.5:
                block, mask = np.flip(block, axis), np.flip(mask, axis)
        block = block * np.float32(1 + 0.1 * float(torch.randn(())))
        return torch.from_numpy(block[None].copy()), torch.from_numpy(mask.copy()).long()


class BlockNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = self.stage(1, width)
        self.second = self.stage(width, 2 * width)
        self.third = self.stage(2 * width, 4 * width)
        self.back2 = self.stage(6 * width, 2 * width)
        self.back1 = nn.Conv3d(3 * width, 2, 3, padding=1)

    @staticmethod
    def stage(inputs, outputs):
        return nn.Sequential(nn.Conv3d(inputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU())

    def forward(self, x):
        a = self.first(x)
        b = self.second(F.max_pool3d(a, 2))
        c = self.third(F.max_pool3d(b, 2))
        b = self.back2(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        return self.back1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1))


def main():
    torch.manual_seed(13)
    loader = DataLoader(Blocks(), batch_size=BATCH, shuffle=True)
    model = BlockNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for blocks, masks in loader:
            if step == warm:
                start = time.perf_counter()
            scores = model(blocks)
            chance = scores.softmax(1)[:, 1]
            overlap = 2 * (chance * masks).sum() / (chance.sum() + masks.sum() + 1)
            loss = F.cross_entropy(scores, masks) + 1 - overlap
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
