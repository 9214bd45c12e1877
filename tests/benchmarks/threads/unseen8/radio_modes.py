"""Tells modulations apart in made-up narrow-band radio."""

import os
import time
from functools import cache

import numpy as np
import torch
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 180))
LENGTH, MODES, FACTORS = 2048, 6, (4, 8, 16)


def low_pass(factor, ripple=60):
    """Lengthens the filter until it stops what it has to."""
    taps = 16 * factor + 1
    while True:
        h = signal.firwin(taps, 1 / factor, window=("kaiser", signal.kaiser_beta(ripple)))
        frequency, response = signal.freqz(h, worN=2048)
        stopped = np.abs(response[frequency > 1.25 * np.pi / factor])
        if 20 * np.log10(stopped.max() + 1e-12) < -ripple:
            return (factor * h).astype(np.float32)
        taps += 2 * factor


if VARIANT == "b":
    low_pass = cache(low_pass)


def symbols(mode, number, rng):
    if mode < 3:
        phases = rng.integers(0, 2 ** (mode + 1), number) / 2 ** (mode + 1)
        return np.exp(2j * np.pi * phases).astype(np.complex64)
    levels = 2 ** (mode - 2)
    real, imag = rng.integers(0, levels, (2, number)) - (levels - 1) / 2
    return ((real + 1j * imag) / levels).astype(np.complex64)


class Bursts(Dataset):
    def __len__(self):
        return 20000

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        mode, factor = int(rng.integers(MODES)), int(rng.choice(FACTORS))
        sent = symbols(mode, LENGTH // factor + 64, rng)
        wave = signal.upfirdn(low_pass(factor), sent, up=factor)[:LENGTH]
        wave *= np.exp(2j * np.pi * rng.uniform(-0.05, 0.05) * np.arange(LENGTH))
        wave += 0.1 * (rng.standard_normal(LENGTH) + 1j * rng.standard_normal(LENGTH))
        return torch.from_numpy(np.stack([wave.real, wave.imag]).astype(np.float32)), mode


class ModeNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, width, 9, stride=2, padding=4),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 7, stride=2, padding=3),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, MODES)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Bursts(), batch_size=32, shuffle=True, drop_last=True)
    model = ModeNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (waves, modes) in enumerate(loader):
        if step == 5:
            start = time.perf_counter()
        if step == STEPS:
            break
        loss = nn.functional.cross_entropy(model(waves), modes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
