"""Predicts stained channels from phase stacks of spores, on random patches."""

import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "350"))
STACKS, DEPTH, SIDE, PATCH = 24, 5, 288, 40
BATCH = 16
PATCHES_PER_STACK = 1 if VARIANT == "a" else 4


def write_stacks(folder):
    rng = np.random.default_rng(7)
    paths = []
    for i in range(STACKS):
        phase = rng.normal(size=(DEPTH, SIDE, SIDE)).astype(np.float32)
        phase = (phase + np.roll(phase, 1, 1) + np.roll(phase, 1, 2)) / 1.7
        stain = np.tanh(phase - np.roll(phase, 2, 2)) + 0.1 * rng.normal(size=phase.shape)
        paths.append(os.path.join(folder, f"stack_{i:03d}.npy"))
        np.save(paths[-1], np.stack([phase, stain.astype(np.float32)]))
    return paths


class SporeStacks(Dataset):
    def __init__(self, paths, patches_per_stack):
        self.paths = paths
        self.patches_per_stack = patches_per_stack

    def __len__(self):
        return len(self.paths)

    def read_stack(self, i):
        stack = torch.from_numpy(np.load(self.paths[i]))
        mean, std = stack.mean((1, 2, 3), keepdim=True), stack.std((1, 2, 3), keepdim=True)
        return (stack - mean) / std

    def __getitem__(self, i):
        stack = self.read_stack(i)
        patches = []
        for _ in range(self.patches_per_stack):
            y, x = torch.randint(SIDE - PATCH, (2,)).tolist()
            patches.append(stack[:, :, y : y + PATCH, x : x + PATCH])
        return torch.stack(patches)


def build_loader(paths):
    dataset = SporeStacks(paths, PATCHES_PER_STACK)
    sampler = RandomSampler(dataset, replacement=True, num_samples=BATCH * STEPS // PATCHES_PER_STACK)
    return DataLoader(dataset, batch_size=BATCH // PATCHES_PER_STACK, sampler=sampler, collate_fn=torch.cat)


class SporeBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return F.relu(self.norm(self.conv2(F.relu(self.conv1(x)))))


class SporeUNet(nn.Module):
    """Slices along depth are the channels of the pictures."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.floor = SporeBlock(DEPTH, 16), SporeBlock(16, 32), SporeBlock(32, 64)
        self.up2, self.up1 = SporeBlock(96, 32), SporeBlock(48, 16)
        self.head = nn.Conv2d(16, DEPTH, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.floor(F.max_pool2d(b, 2))
        b = self.up2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.up1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.head(a)


def main():
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as folder:
        loader = build_loader(write_stacks(folder))
        model = SporeUNet()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        warm = min(10, STEPS // 2)
        for step, patches in enumerate(loader):
            if step == warm:
                start = time.perf_counter()
            loss = F.smooth_l1_loss(model(patches[:, 0]), patches[:, 1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        took = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * took / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
