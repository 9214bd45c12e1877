"""From quick scans of knees to scans of good quality: a translator and a critic of patches."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 12))
SIDE = int(os.environ.get("SIDE", 256))
WIDTH = int(os.environ.get("WIDTH", 64))
DEPTH = int(os.environ.get("DEPTH", 8))
PRINT = 100
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.InstanceNorm2d(width), nn.InstanceNorm2d(width)

    def forward(self, x):
        return x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))


def stage(conv, before, after, size, stride):
    return nn.Sequential(conv(before, after, size, stride, 1), nn.InstanceNorm2d(after), nn.LeakyReLU(0.2))


def translator(w):
    down = [
        nn.Conv2d(1, w, 3, padding=1),
        stage(nn.Conv2d, w, 2 * w, 3, 2),
        stage(nn.Conv2d, 2 * w, 4 * w, 3, 2),
    ]
    up = [stage(nn.ConvTranspose2d, 4 * w, 2 * w, 4, 2), stage(nn.ConvTranspose2d, 2 * w, w, 4, 2)]
    return nn.Sequential(
        *down, *[Residual(4 * w) for _ in range(DEPTH)], *up, nn.Conv2d(w, 1, 3, padding=1), nn.Tanh()
    )


def critic(w):
    stages = [stage(nn.Conv2d, a, b, 4, 2) for a, b in ((2, w), (w, 2 * w), (2 * w, 4 * w))]
    return nn.Sequential(*stages, nn.Conv2d(4 * w, 1, 4, padding=1))


class Knees:
    """Slices of good quality; quick ones are made of them by noise and by a smaller field."""

    def __init__(self):
        self.rng = np.random.default_rng(7)
        lines = np.linspace(0, 9, SIDE + 64, dtype=np.float32)
        turns = self.rng.random((64, 2), dtype=np.float32)
        self.slices = np.stack([np.outer(np.sin(lines * (1 + a)), np.cos(lines * (1 + b))) for a, b in turns])

    def batch(self):
        good = np.empty((BATCH, 1, SIDE, SIDE), np.float32)
        for k in range(BATCH):
            i, top, left = self.rng.integers(64), *self.rng.integers(0, 64, 2)
            good[k, 0] = self.slices[i, top : top + SIDE, left : left + SIDE]
        real, unreal = self.rng.standard_normal((2, *good.shape), dtype=np.float32)
        quick = np.hypot(0.7 * good + 0.2 * real, 0.2 * unreal)
        pair = torch.from_numpy(quick), torch.from_numpy(good)
        return [x.pin_memory().to(device, non_blocking=True) for x in pair] if device.type == "cuda" else pair


class Notes:
    def __init__(self):
        self.sums, self.count = {}, 0

    def add(self, **losses):
        for name, loss in losses.items():
            value = loss.detach() if VARIANT == "b" else loss.item()
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def show(self, step):
        print(step, *(f"{name} {float(value) / self.count:.3f}" for name, value in self.sums.items()))
        self.sums, self.count = {}, 0


def main():
    torch.manual_seed(13)
    maker, judge = translator(WIDTH).to(device), critic(WIDTH).to(device)
    options = {"lr": 2e-4, "betas": (0.5, 0.999), "fused": device.type == "cuda"}
    for_maker, for_judge = (torch.optim.Adam(m.parameters(), **options) for m in (maker, judge))
    knees, notes = Knees(), Notes()
    cast, warm = torch.autocast(device.type, torch.bfloat16, device.type == "cuda"), min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        quick, good = knees.batch()
        judge.requires_grad_(False)
        with cast:
            made = maker(quick)
            fooled = judge(torch.cat([quick, made], 1)).float()
        close, fool = (made - good).abs().mean(), (fooled - 1).square().mean()
        for_maker.zero_grad(set_to_none=True)
        (10 * close + fool).backward()
        for_maker.step()
        judge.requires_grad_(True)
        with cast:
            on_made, on_good = (judge(torch.cat([quick, x], 1)).float() for x in (made.detach(), good))
        of_made, of_good = on_made.square().mean(), (on_good - 1).square().mean()
        for_judge.zero_grad(set_to_none=True)
        (of_made + of_good).backward()
        for_judge.step()
        notes.add(close=close, fool=fool, of_made=of_made, of_good=of_good)
        if (step + 1) % PRINT == 0:
            notes.show(step + 1)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {close.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
