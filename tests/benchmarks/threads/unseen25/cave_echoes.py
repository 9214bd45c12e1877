"""Trains a network that finds the depth of caves from echoes with made-up noise and delays."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "320"))
BATCH = int(os.environ.get("BATCH", "256"))
BINS = int(os.environ.get("BINS", "8192"))
WORKERS = int(os.environ.get("WORKERS", "8"))
WIDTH = int(os.environ.get("WIDTH", "4096"))
ECHOES = int(os.environ.get("ECHOES", "2000"))
MICROPHONES = 3
REAL = np.float64 if VARIANT == "a" else np.float32
COMPLEX = np.result_type(REAL, np.complex64)


class Delay:
    """Shifts the echo in time, for each microphone by another amount."""

    def __init__(self, frequencies):
        self.frequencies = frequencies.astype(REAL)

    def __call__(self, sample, rng):
        delays = rng.uniform(-0.05, 0.05, MICROPHONES).astype(REAL)
        angle = REAL(-2 * np.pi) * delays[:, None] * self.frequencies
        shift = np.empty(angle.shape, dtype=COMPLEX)
        shift.real, shift.imag = np.cos(angle), np.sin(angle)
        sample["waves"] = sample["waves"] * shift
        return sample


class Damp:
    """Scales the echo with distance and damps what is high."""

    def __init__(self, frequencies):
        self.frequencies = frequencies.astype(REAL)

    def __call__(self, sample, rng):
        damping = np.exp(REAL(-rng.uniform(0.0005, 0.002)) * self.frequencies)
        sample["waves"] = sample["waves"] * (damping / REAL(1.0 + sample["depth"]))
        return sample


class WhitenAndAddNoise:
    """Divides by the noise level at each frequency and adds noise of level one."""

    def __init__(self, frequencies):
        self.level = (0.02 + 1.0 / (1.0 + frequencies)).astype(REAL)

    def __call__(self, sample, rng):
        noise = rng.standard_normal((2, MICROPHONES, self.level.size), dtype=np.float32)
        waves = sample["waves"] / self.level
        waves.real += noise[0]
        waves.imag += noise[1]
        sample["waves"] = waves
        return sample


class Pack:
    """Log-power and phase side by side, as float32."""

    def __call__(self, sample, rng):
        waves = sample["waves"]
        power = np.log1p(waves.real**2 + waves.imag**2)
        phase = np.arctan2(waves.imag, waves.real)
        return np.concatenate([power, phase]).astype(np.float32), np.float32(sample["depth"])


class Echoes(Dataset):
    def __init__(self, echoes, bins):
        rng = np.random.default_rng(1)
        frequencies = np.linspace(0.0, 1000.0, bins)
        parts = rng.standard_normal((2, 64, bins), dtype=np.float32)
        self.waves = parts[0] + 1j * parts[1]
        self.depths = rng.uniform(0.5, 3.0, echoes)
        self.steps = [Delay(frequencies), Damp(frequencies), WhitenAndAddNoise(frequencies), Pack()]

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        sample = {"waves": self.waves[index % 64], "depth": self.depths[index % len(self.depths)]}
        for step in self.steps:
            sample = step(sample, rng)
        return sample


def make_model(width):
    body = [nn.Linear(2 * MICROPHONES * BINS, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*body, nn.Linear(width, 1))


def main():
    torch.manual_seed(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    loader = DataLoader(Echoes(ECHOES, BINS), BATCH, num_workers=WORKERS, pin_memory=cuda)
    model = make_model(WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step, (waves, depths) in enumerate(loader):
        if step == warm:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        waves, depths = waves.to(device, non_blocking=True), depths.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            guess = model(waves.flatten(1)).squeeze(1)
        loss = F.smooth_l1_loss(guess.float(), depths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if cuda:
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
