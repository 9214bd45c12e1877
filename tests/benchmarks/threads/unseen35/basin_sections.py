"""Trace a horizon through seismic sections: crops of a cube, contrast, a gentle tilt, a small net."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "700"))
WARM = min(10, STEPS // 2)
LINES, TRACES, DEPTHS = 60, 240, 320
CROP_TRACES, CROP_DEPTHS = 160, 192
BATCH = 40
WIDTH = 4
KIND = None if VARIANT == "a" else np.float32


def make_cube(rng):
    trace = np.arange(TRACES)[None, :]
    line = np.arange(LINES)[:, None]
    horizon = 150 + 30 * np.sin(trace / 37) + 15 * np.cos(line / 11)
    cube = rng.standard_normal((LINES, TRACES, DEPTHS), dtype=np.float32)
    depth = np.arange(DEPTHS)[None, None, :]
    cube += 3 * np.cos((depth - horizon[..., None]) / 4).astype(np.float32)
    return cube, horizon.astype(np.float32)


class BasinSections:
    def __init__(self, cube, horizon):
        self.cube, self.horizon = cube, horizon
        self.low, self.high = np.quantile(cube[::7, ::7], (0.01, 0.99)).astype(np.float32).tolist()
        self.rng = np.random.default_rng(1)

    def cut(self):
        crops = np.zeros((BATCH, CROP_TRACES, CROP_DEPTHS), dtype=KIND)
        picks = np.zeros((BATCH, CROP_TRACES), dtype=KIND)
        for k in range(BATCH):
            line = self.rng.integers(LINES)
            trace = self.rng.integers(TRACES - CROP_TRACES)
            top = self.rng.integers(DEPTHS - CROP_DEPTHS)
            rows = slice(trace, trace + CROP_TRACES)
            crops[k] = self.cube[line, rows, top : top + CROP_DEPTHS]
            picks[k] = self.horizon[line, rows] - top
        return crops, picks

    def shade(self, crops):
        crops = np.clip(crops, self.low, self.high)
        crops = 2 * (crops - self.low) / (self.high - self.low) - 1
        tilt = np.linspace(-0.2, 0.2, CROP_DEPTHS, dtype=KIND) * self.rng.uniform(0, 1)
        crops = np.tanh(self.rng.uniform(0.8, 1.6) * (crops + tilt))
        wave = np.linspace(0, 6.0, CROP_TRACES, dtype=KIND)[:, None]
        ripple = np.sin(wave + np.linspace(0, 9.0, CROP_DEPTHS, dtype=KIND))
        return crops * (1 + 0.05 * ripple)

    def paint(self, picks):
        depth = np.linspace(0, CROP_DEPTHS - 1, CROP_DEPTHS, dtype=KIND)
        away = (depth - picks[..., None]) / 3
        return np.exp(-0.5 * away * away)

    def batch(self):
        crops, picks = self.cut()
        crops, masks = self.shade(crops), self.paint(picks)
        mean = crops.mean((1, 2), keepdims=True)
        spread = crops.std((1, 2), keepdims=True)
        crops = (crops - mean) / (spread + 1e-6)
        return (
            torch.from_numpy(crops.astype(np.float32, copy=False))[:, None],
            torch.from_numpy(masks.astype(np.float32, copy=False))[:, None],
        )


class HorizonNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, WIDTH, 4, 4), nn.ReLU(), nn.Conv2d(WIDTH, 4 * WIDTH, 2, 2), nn.ReLU()
        )
        self.deep = nn.Sequential(
            nn.Conv2d(4 * WIDTH, 4 * WIDTH, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(4 * WIDTH, 4 * WIDTH, 3, 1, 1),
            nn.ReLU(),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(4 * WIDTH, WIDTH, 2, 2), nn.ReLU(), nn.ConvTranspose2d(WIDTH, 1, 4, 4)
        )

    def forward(self, crops):
        return self.up(self.deep(self.down(crops)))


def main():
    torch.manual_seed(0)
    sections = BasinSections(*make_cube(np.random.default_rng(0)))
    model = HorizonNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        crops, masks = sections.batch()
        loss = F.binary_cross_entropy_with_logits(model(crops), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{spent / (STEPS - WARM) * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
