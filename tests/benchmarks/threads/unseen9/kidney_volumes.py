"""Kidneys in CT volumes: a 3D U-Net trained on patches that are changed at random."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage
from scipy.spatial.transform import Rotation
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1500))
BATCH = int(os.environ.get("BATCH", 2))
PATCH = int(os.environ.get("PATCH", 96))
WIDTH = int(os.environ.get("WIDTH", 32))
WORKERS = int(os.environ.get("WORKERS", 16))
CASES = int(os.environ.get("CASES", 12))
device = torch.device(os.environ.get("DEVICE", "cuda"))


def random_affine(rng, count):
    return (Rotation.random(count, rng=rng) ** 0.3).as_matrix() * rng.uniform(0.7, 1.4, (count, 1, 1))


def augment(image, label, rng):
    """Turns, scales, coarsens, blurs and darkens one patch."""
    if rng.random() < 0.9:
        matrix = random_affine(rng, 1)[0]
        middle = (np.array(image.shape) - 1) / 2
        offset = middle - matrix @ middle
        image = ndimage.affine_transform(image, matrix, offset, order=3, mode="nearest")
        label = ndimage.affine_transform(label, matrix, offset, order=0, mode="nearest")
    if rng.random() < 0.5:
        image = ndimage.zoom(ndimage.zoom(image, 0.5, order=0), 2, order=3)
    if rng.random() < 0.5:
        image = ndimage.gaussian_filter(image, rng.uniform(0.5, 1.0))
    image = image * rng.uniform(0.75, 1.25) + rng.uniform(-0.2, 0.2)
    return np.ascontiguousarray(image, np.float32), np.ascontiguousarray(label)


def augment_batch(image, label, rng):
    count = len(image)
    chosen = torch.from_numpy(rng.random((3, count)) < np.array([[0.9], [0.5], [0.5]]))
    chosen = chosen.to(image.device)[..., None, None, None, None]
    theta = torch.zeros(count, 3, 4, device=image.device)
    theta[:, :, :3] = torch.from_numpy(random_affine(rng, count)).float().to(image.device)
    theta = torch.where(chosen[0, :, :, 0, 0], theta, torch.eye(3, 4, device=image.device))
    grid = F.affine_grid(theta, image.shape, align_corners=False)
    image = F.grid_sample(image, grid, padding_mode="border", align_corners=False)
    label = F.grid_sample(label[:, None].float(), grid, "nearest", "border", align_corners=False)[:, 0].long()
    coarse = F.interpolate(F.interpolate(image, scale_factor=0.5), image.shape[2:], mode="trilinear")
    image = torch.where(chosen[1], coarse, image)
    image = torch.where(chosen[2], F.avg_pool3d(image, 3, 1, 1, count_include_pad=False), image)
    change = torch.from_numpy(rng.uniform(-1, 1, (2, count, 1, 1, 1, 1))).float().to(image.device)
    return image * (1 + 0.25 * change[0]) + 0.2 * change[1], label


class Patches(Dataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.npy"))

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        case = np.load(self.files[i % len(self.files)], mmap_mode="r")
        z, y, x = (rng.integers(0, n - PATCH + 1) for n in case.shape[1:])
        image, label = np.array(case[:, z : z + PATCH, y : y + PATCH, x : x + PATCH])
        if VARIANT == "a":
            image, label = augment(image, label, rng)
        return torch.from_numpy(image)[None], torch.from_numpy(label).long()


def block(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride, 1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU()
    )


class KidneyNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH]
        self.down, self.up, self.join = (nn.ModuleList() for _ in range(3))
        for k, width in enumerate(widths):
            first = block(1 if k == 0 else widths[k - 1], width, 1 if k == 0 else 2)
            self.down.append(nn.Sequential(first, block(width, width)))
        for k in (2, 1, 0):
            self.up.append(nn.ConvTranspose3d(widths[k + 1], widths[k], 2, 2))
            self.join.append(nn.Sequential(block(2 * widths[k], widths[k]), block(widths[k], widths[k])))
        self.head = nn.Conv3d(WIDTH, 3, 1)

    def forward(self, x):
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


def write_cases(folder):
    rng = np.random.default_rng(5)
    for n in range(CASES):
        volume = ndimage.zoom(rng.normal(size=(PATCH // 8 + 6,) * 3), 8, order=1)
        kidney = np.digitize(volume, (0.6, 1.2))
        np.save(folder / f"case{n:03}.npy", np.stack([volume, kidney]).astype(np.float32))


def main():
    torch.manual_seed(5)
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as name:
        write_cases(Path(name))
        loader = DataLoader(Patches(Path(name)), BATCH, num_workers=WORKERS, pin_memory=device.type == "cuda")
        model = KidneyNet().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True)
        warm = min(20, STEPS // 2)
        for step, (image, label) in enumerate(loader):
            if step == warm:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
            image, label = image.to(device, non_blocking=True), label.to(device, non_blocking=True)
            if VARIANT == "b":
                image, label = augment_batch(image, label, rng)
            with torch.autocast(device.type, torch.bfloat16):
                scores = model(image)
            loss = F.cross_entropy(scores.float(), label)
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
