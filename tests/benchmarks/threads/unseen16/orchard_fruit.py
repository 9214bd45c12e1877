"""Ripe fruit on photographs of an orchard: a detector without anchors, trained on augmented pictures."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
BATCH = int(os.environ.get("BATCH", 32))
SIDE = int(os.environ.get("SIDE", 416))
WIDTH = int(os.environ.get("WIDTH", 64))
WORKERS = int(os.environ.get("WORKERS", 8))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Orchard(Dataset):
    """Pictures and the map of where fruit hangs (one cell for each 8 x 8 pixels)."""

    def __init__(self, count):
        draw = np.random.default_rng(5)
        small = draw.integers(0, 256, (count, SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        self.pictures = small.repeat(8, 1).repeat(8, 2)
        self.fruit = (small[..., 0] > 200).astype(np.float32)

    def __len__(self):
        return 1_000_000

    def light(self, picture, draw):
        """The same picture on a darker or a brighter day."""
        gammas = draw.uniform(0.6, 1.6, 3)
        if VARIANT == "b":
            table = 255 * (np.arange(256)[:, None] / 255.0) ** gammas
            table = table.astype(np.uint8)
            return np.stack([table[picture[..., k], k] for k in range(3)], -1)
        return (255 * (picture / 255.0) ** gammas).astype(np.uint8)

    def __getitem__(self, item):
        draw = np.random.default_rng(item)
        picture, fruit = self.pictures[item % len(self.pictures)], self.fruit[item % len(self.fruit)]
        picture = self.light(picture, draw)
        if draw.random() < 0.5:
            picture, fruit = picture[:, ::-1], fruit[:, ::-1]
        down, right = draw.integers(0, SIDE // 8, 2)
        picture = np.roll(picture, (8 * down, 8 * right), (0, 1))
        fruit = np.roll(fruit, (down, right), (0, 1))
        return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1))), torch.from_numpy(
            fruit.copy()
        )


class Unit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width // 2, 1, bias=False),
            nn.BatchNorm2d(width // 2),
            nn.SiLU(),
            nn.Conv2d(width // 2, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.silu(x + self.body(x))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        stages, before = [], 3
        for after, units in ((WIDTH, 1), (2 * WIDTH, 3), (4 * WIDTH, 6), (8 * WIDTH, 4), (16 * WIDTH, 2)):
            stages.append(
                nn.Sequential(
                    nn.Conv2d(before, after, 3, 2, 1, bias=False),
                    nn.BatchNorm2d(after),
                    nn.SiLU(),
                    *[Unit(after) for _ in range(units)],
                )
            )
            before = after
        self.stages = nn.ModuleList(stages)
        self.narrow = nn.ModuleList([nn.Conv2d(k * WIDTH, 2 * WIDTH, 1) for k in (4, 8, 16)])
        self.head = nn.Sequential(Unit(2 * WIDTH), nn.Conv2d(2 * WIDTH, 1, 1))

    def forward(self, x):
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        fine, middle, coarse = (narrow(level) for narrow, level in zip(self.narrow, levels[2:], strict=True))
        middle = middle + F.interpolate(coarse, size=middle.shape[2:])
        return self.head(fine + F.interpolate(middle, size=fine.shape[2:]))[:, 0]


def main():
    torch.manual_seed(83)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=device.type == "cuda")
    options = {"num_workers": WORKERS, "prefetch_factor": 4, "pin_memory": device.type == "cuda"}
    loader = DataLoader(Orchard(256), batch_size=BATCH, shuffle=True, drop_last=True, **options)
    warm = min(15, STEPS // 2)
    for step, (pictures, fruit) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        pictures = pictures.to(device, non_blocking=True).float() / 255
        loss = F.binary_cross_entropy_with_logits(model(pictures), fruit.to(device, non_blocking=True))
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
