"""Trains a 3D network that finds kelp in sonar volumes, which are turned and scaled at random when loaded."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 800))
BATCH = int(os.environ.get("BATCH", 4))
SIZE = int(os.environ.get("SIZE", 96))
WIDTH = int(os.environ.get("WIDTH", 24))
WORKERS = int(os.environ.get("WORKERS", 8))
VOLUMES = 12


def create_grid(size):
    """Homogeneous coordinates of all voxels, the middle of the volume at zero."""
    ranges = [np.linspace(-(d - 1.0) / 2.0, (d - 1.0) / 2.0, d) for d in size]
    coords = np.asarray(np.meshgrid(*ranges, indexing="ij"), dtype=float)
    return np.concatenate([coords, np.ones_like(coords[:1])])


class RandomAffine:
    """Turns and scales a volume and its marks alike."""

    def __init__(self, size, keep_grid):
        self.size = size
        self.grid = self.make_grid() if keep_grid else None

    def make_grid(self):
        grid = torch.from_numpy(create_grid(self.size)).float()
        return grid.flatten(1).t().contiguous()

    def matrix(self, rng):
        out = np.eye(4, dtype=np.float32)
        for first, second in ((0, 1), (0, 2), (1, 2)):
            angle = rng.uniform(-0.4, 0.4)
            turn = np.eye(4, dtype=np.float32)
            turn[first, first] = turn[second, second] = np.cos(angle)
            turn[first, second], turn[second, first] = -np.sin(angle), np.sin(angle)
            out = out @ turn
        out[:3, :3] *= rng.uniform(0.85, 1.15)
        out[:3] /= (np.asarray(self.size, dtype=np.float32)[:, None] - 1) / 2
        return torch.from_numpy(np.ascontiguousarray(out[2::-1].T))

    def __call__(self, volume, rng):
        grid = self.make_grid() if self.grid is None else self.grid
        places = torch.mm(grid, self.matrix(rng)).view(1, *self.size, 3)
        return F.grid_sample(volume[None], places, align_corners=True)[0]


class KelpVolumes(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(17)
        self.count = count
        rough = torch.from_numpy(rng.standard_normal((VOLUMES, 1, 8, 8, 8)).astype(np.float32))
        smooth = F.interpolate(rough, size=(SIZE, SIZE, SIZE), mode="trilinear", align_corners=True)
        noise = torch.randn(smooth.shape, generator=torch.Generator().manual_seed(17))
        self.volumes = torch.cat([smooth + 0.4 * noise, (smooth > 0.3).float()], dim=1)
        self.affine = RandomAffine((SIZE, SIZE, SIZE), keep_grid=VARIANT == "b")

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return self.affine(self.volumes[index % VOLUMES], rng)


def pair(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, stride=stride, padding=1),
        nn.BatchNorm3d(cout),
        nn.ReLU(inplace=True),
        nn.Conv3d(cout, cout, 3, padding=1),
        nn.BatchNorm3d(cout),
        nn.ReLU(inplace=True),
    )


class KelpNet(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.enter, self.down = pair(1, w, stride=2), pair(w, 2 * w, stride=2)
        self.deep = pair(2 * w, 4 * w, stride=2)
        self.up2 = nn.ConvTranspose3d(4 * w, 2 * w, 2, 2)
        self.join2 = pair(4 * w, 2 * w)
        self.up1 = nn.ConvTranspose3d(2 * w, w, 2, 2)
        self.join1 = pair(2 * w, w)
        self.head = nn.ConvTranspose3d(w, 1, 2, 2)

    def forward(self, x):
        a = self.enter(x)
        b = self.down(a)
        b = self.join2(torch.cat([self.up2(self.deep(b)), b], dim=1))
        a = self.join1(torch.cat([self.up1(b), a], dim=1))
        return self.head(a)


def main():
    torch.manual_seed(17)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    cuda = device.type == "cuda"
    model = KelpNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cuda)
    loader = DataLoader(KelpVolumes(STEPS * BATCH), batch_size=BATCH, num_workers=WORKERS, pin_memory=cuda)
    sync = torch.cuda.synchronize if cuda else time.perf_counter
    warm = min(10, STEPS // 2)
    for step, scans in enumerate(loader):
        if step == warm:
            sync()
            start = time.perf_counter()
        volume, marks = scans.to(device, non_blocking=True).split(1, dim=1)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            guess = model(volume)
        loss = F.binary_cross_entropy_with_logits(guess.float(), marks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
