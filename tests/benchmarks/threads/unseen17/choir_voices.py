"""Sounds of singers from the melody that they sing: spectra learned from recordings."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
BATCH = int(os.environ.get("BATCH", 32))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 8))
SONGS = int(os.environ.get("SONGS", 160))
FRAMES = int(os.environ.get("FRAMES", 200))
WORKERS = int(os.environ.get("WORKERS", 10))
RATE, HOP, WINDOW, SECONDS = 16000, 80, 1024, 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def sing(random):
    """A recording: a voice with overtones whose pitch wanders, and some breath."""
    knots = np.arange(0, RATE * SECONDS + 1, RATE // 4)
    bends = np.interp(np.arange(RATE * SECONDS), knots, random.normal(0, 0.2, len(knots)))
    phase = np.cumsum(2 * np.pi * random.uniform(110, 330) * 2**bends / RATE)
    voice = sum(np.sin(k * phase) / k for k in range(1, 5))
    return (0.3 * voice + 0.05 * random.standard_normal(len(voice))).astype(np.float32)


def melody(wave, low=60, high=500):
    """Pitch in hertz each five milliseconds, zero where nobody sings."""
    padded = np.pad(wave, WINDOW // 2)
    pieces = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[: len(wave) : HOP]
    pieces = pieces * np.hanning(WINDOW).astype(np.float32)
    power = np.abs(np.fft.rfft(pieces, 2 * WINDOW)) ** 2
    likeness = np.fft.irfft(power)[:, : RATE // low + 1]
    likeness = likeness / (likeness[:, :1] + 1e-6)
    lag = likeness[:, RATE // high :].argmax(1) + RATE // high
    sung = np.take_along_axis(likeness, lag[:, None], 1)[:, 0] > 0.3
    return np.where(sung, RATE / lag, 0).astype(np.float32)


class Choir(Dataset):
    def __init__(self):
        random = np.random.default_rng(5)
        self.waves = [sing(random) for _ in range(SONGS)]
        self.melodies = [melody(wave) for wave in self.waves] if VARIANT == "b" else None

    def __len__(self):
        return SONGS

    def __getitem__(self, item):
        wave = self.waves[item]
        pitch = self.melodies[item] if self.melodies else melody(wave)
        start = torch.randint(len(pitch) - FRAMES, ()).item()
        pitch = torch.from_numpy(pitch[start : start + FRAMES])
        return item, pitch, torch.from_numpy(wave[start * HOP : (start + FRAMES) * HOP])


class Block(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.wide = nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation)
        self.near = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.near(F.leaky_relu(self.wide(F.leaky_relu(x, 0.1)), 0.1))


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.singers = nn.Embedding(SONGS, WIDTH)
        self.pitches = nn.Embedding(512, WIDTH)
        self.blocks = nn.Sequential(*[Block(WIDTH, 3 ** (k % 4)) for k in range(DEPTH)])
        self.out = nn.Conv1d(WIDTH, WINDOW // 2 + 1, 1)

    def forward(self, singer, pitch):
        x = self.pitches(pitch.long().clamp(0, 511)) + self.singers(singer)[:, None]
        return self.out(self.blocks(x.transpose(1, 2)))


def main():
    torch.manual_seed(71)
    model = Voice().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    window = torch.hann_window(WINDOW, device=device)
    choir = Choir()
    sampler = RandomSampler(choir, replacement=True, num_samples=STEPS * BATCH)
    pin = device.type == "cuda"
    loader = DataLoader(choir, BATCH, sampler=sampler, num_workers=WORKERS, pin_memory=pin)
    warm = min(20, STEPS // 2)
    for step, batch in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        singer, pitch, wave = (x.to(device, non_blocking=True) for x in batch)
        spectrum = torch.stft(wave, WINDOW, HOP, window=window, return_complex=True)
        loss = F.l1_loss(model(singer, pitch), spectrum[..., :FRAMES].abs().add(1e-3).log())
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
