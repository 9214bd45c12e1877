"""Calls of frogs found in long recordings of ponds: clips of two seconds, one label for each."""

import os
import tempfile
import time
import wave
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 700))
BATCH = int(os.environ.get("BATCH", 16))
RATE, NIGHT, CLIP, SPECIES = 22_050, 180, 2, 12


def record(folder, count=10):
    """Writes the recordings: noise with a whistle here and there."""
    rng = np.random.default_rng(5)
    paths = []
    for i in range(count):
        sound = rng.normal(0, 800, RATE * NIGHT)
        sound += 2000 * np.sin(np.arange(len(sound)) * (0.05 + 0.01 * (i % SPECIES)))
        paths.append(Path(folder) / f"pond_{i:02d}.wav")
        with wave.open(str(paths[-1]), "wb") as file:
            file.setparams((1, 2, RATE, len(sound), "NONE", ""))
            file.writeframes(sound.astype(np.int16).tobytes())
    return paths


class Audio:
    def __init__(self, samples):
        self.samples = samples

    @classmethod
    def from_file(cls, path, offset=0.0, duration=None):
        with wave.open(str(path), "rb") as file:
            file.setpos(int(offset * RATE))
            count = file.getnframes() if duration is None else int(duration * RATE)
            frames = file.readframes(count)
        return cls(np.frombuffer(frames, np.int16).astype(np.float32) / 32768)

    def trim(self, start, end):
        return Audio(self.samples[int(start * RATE) : int(end * RATE)])


class Clips(Dataset):
    def __init__(self, paths):
        self.clips = [(path, start) for path in paths for start in range(0, NIGHT, CLIP)]

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        path, start = self.clips[i]
        if VARIANT == "a":
            clip = Audio.from_file(path).trim(start, start + CLIP)
        else:
            clip = Audio.from_file(path, offset=start, duration=CLIP)
        return torch.from_numpy(clip.samples.copy()), int(path.stem[-2:]) % SPECIES


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
        )  # fmt: skip
        self.output = nn.Linear(64, SPECIES)

    def forward(self, sound):
        spectrum = torch.stft(sound, 512, 512, window=self.window, return_complex=True).abs()
        return self.output(self.body(spectrum.log1p()[:, None]).mean((2, 3)))


def train(paths):
    torch.manual_seed(0)
    model, step = CallNet(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Clips(paths), BATCH, shuffle=True)
    while step < STEPS:
        for sound, species in loader:
            if step == 5:
                start = time.perf_counter()
            loss = F.cross_entropy(model(sound), species)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(record(folder))
