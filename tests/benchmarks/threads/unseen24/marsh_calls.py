"""Calls of marsh birds, recorded at 22,050 Hz and named by a convolutional net that hears 16,000 Hz."""

import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
BATCH = int(os.environ.get("BATCH", 48))
WIDTH = int(os.environ.get("WIDTH", 96))
WORKERS = int(os.environ.get("WORKERS", 12))
BIRDS, CALLS, SECONDS = 60, 3000, 0.5
OLD, NEW = 441, 320  # the rates, divided by 50
REACH, CUT = 22, 0.95 * 320 / 441
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def kernel(distance):
    window = np.cos(0.5 * math.pi * np.clip(distance / REACH, -1, 1)) ** 2
    return CUT * np.sinc(CUT * distance) * window


def make_phases():
    at = np.arange(NEW)[:, None] * OLD / NEW
    weights = kernel(np.arange(-REACH, OLD + REACH)[None] - at)
    return torch.from_numpy(weights).float()[:, None]


PHASES = make_phases()


def to_16k(sound):
    """Band-limited interpolation of one recording."""
    count = len(sound) * NEW // OLD
    if VARIANT == "b":
        padded = F.pad(torch.from_numpy(sound)[None, None], (REACH, REACH + OLD))
        frames = F.conv1d(padded, PHASES, stride=OLD)
        return frames[0].T.reshape(-1)[:count]
    at = np.arange(count) * OLD / NEW
    near = np.floor(at).astype(np.int64)[:, None] + np.arange(-REACH, REACH + 1)[None]
    weights = kernel(near - at[:, None])
    padded = np.pad(sound, (REACH, REACH + 1))
    return torch.from_numpy((padded[near + REACH] * weights).sum(1).astype(np.float32))


class MarshCalls(Dataset):
    def __init__(self):
        rng = np.random.default_rng(8)
        size = int(22050 * SECONDS)
        time_axis = np.arange(size, dtype=np.float32) / 22050
        self.birds = rng.integers(0, BIRDS, CALLS)
        tones = [np.sin(2 * np.pi * (400 + 90 * b) * time_axis * (1 + 0.3 * time_axis)) for b in range(BIRDS)]
        noise = rng.standard_normal(8 * size, dtype=np.float32)
        starts = rng.integers(0, 7 * size, CALLS)
        self.sounds = [
            (9000 * (tones[b] + 0.5 * noise[s : s + size])).clip(-32000, 32000).astype(np.int16)
            for b, s in zip(self.birds, starts, strict=True)
        ]

    def __len__(self):
        return CALLS

    def __getitem__(self, item):
        return to_16k(self.sounds[item].astype(np.float32) / 32768), int(self.birds[item])


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        layers, before = [], 1
        for after, stride in (
            (WIDTH, 1),
            (WIDTH, 1),
            (2 * WIDTH, 2),
            (2 * WIDTH, 1),
            (4 * WIDTH, 2),
            (4 * WIDTH, 1),
        ):
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            before = after
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(before, BIRDS)

    def forward(self, sounds):
        bands = torch.stft(sounds, 512, 96, window=self.window, return_complex=True).abs()
        return self.head(self.layers(bands.add(1e-5).log()[:, None, :256]).mean((2, 3)))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(77)
    loader = DataLoader(
        MarshCalls(), BATCH, shuffle=True, drop_last=True, num_workers=WORKERS, pin_memory=device.type == "cuda",
        persistent_workers=WORKERS > 0,
    )  # fmt: skip
    model = CallNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    warm = min(30, STEPS // 2)
    for step, (sounds, birds) in enumerate(endless(loader)):
        if step == STEPS:
            break
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        sounds, birds = sounds.to(device, non_blocking=True), birds.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(sounds), birds)
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
