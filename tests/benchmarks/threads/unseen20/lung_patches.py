"""Vessels in scans of lungs: patches are cut where a map says that they are of use, and a small 3D net learns them."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 280))
BATCH = int(os.environ.get("BATCH", 24))
SIDE = int(os.environ.get("SIDE", 192))
PATCH = int(os.environ.get("PATCH", 48))
WIDTH = int(os.environ.get("WIDTH", 16))
SCANS = 6
PER_SCAN = 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class UsefulPlaces:
    def __init__(self, usefulness):
        inner = np.zeros_like(usefulness)
        inside = (slice(PATCH // 2, usefulness.shape[0] - PATCH // 2),) * 3
        inner[inside] = usefulness[inside]
        self.shape = usefulness.shape
        self.running = np.cumsum(inner.ravel(), dtype=np.float64)

    def draw(self, rng):
        number = rng.random() * self.running[-1]
        if VARIANT == "b":
            place = np.searchsorted(self.running, number)
        else:
            place = np.argmax(number <= self.running)
        return [int(k) - PATCH // 2 for k in np.unravel_index(place, self.shape)]


class Patches(IterableDataset):
    def __init__(self, scans):
        self.scans = scans

    def __iter__(self):
        rng = np.random.default_rng(9)
        while True:
            for k in rng.permutation(len(self.scans)):
                scan, vessels, places = self.scans[k]
                for _ in range(PER_SCAN):
                    z, y, x = places.draw(rng)
                    cut = (slice(z, z + PATCH), slice(y, y + PATCH), slice(x, x + PATCH))
                    patch, mask = scan[cut], vessels[cut]
                    if rng.random() < 0.5:
                        patch, mask = patch[:, :, ::-1], mask[:, :, ::-1]
                    patch = patch * np.float32(rng.uniform(0.9, 1.1))
                    yield torch.from_numpy(patch[None].copy()), torch.from_numpy(mask[None].copy())


def read_scans():
    scans = []
    for _ in range(SCANS):
        coarse = torch.randn(1, 1, SIDE // 8, SIDE // 8, SIDE // 8)
        smooth = F.interpolate(coarse, size=(SIDE,) * 3, mode="trilinear")[0, 0]
        vessels = (smooth > 0.8).float()
        scan = vessels + 0.5 * torch.randn(SIDE, SIDE, SIDE)
        scans.append((scan.numpy(), vessels.numpy(), UsefulPlaces((vessels + 0.01).numpy())))
    return scans


def pair(before, after):
    layers = []
    for first, last in ((before, after), (after, after)):
        layers += [
            nn.Conv3d(first, last, 3, padding=1),
            nn.InstanceNorm3d(last, affine=True),
            nn.LeakyReLU(0.01),
        ]
    return nn.Sequential(*layers)


class VesselNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.down1, self.down2, self.bottom = pair(1, w), pair(w, 2 * w), pair(2 * w, 4 * w)
        self.up2, self.up1 = pair(6 * w, 2 * w), pair(3 * w, w)
        self.head = nn.Conv3d(w, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool3d(a, 2))
        c = self.bottom(F.max_pool3d(b, 2))
        b = self.up2(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        return self.head(self.up1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)))


def main():
    torch.manual_seed(19)
    model = VesselNet(WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    loader = DataLoader(Patches(read_scans()), batch_size=BATCH)
    warm = min(15, STEPS // 2)
    for step, (patches, masks) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        patches, masks = patches.to(device), masks.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(patches)
        loss = F.binary_cross_entropy_with_logits(scores.float(), masks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step + 1 == STEPS:
            break
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
