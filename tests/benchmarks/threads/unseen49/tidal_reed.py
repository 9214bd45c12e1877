"""Train a small speaker classifier on raw speech that is distorted batch by batch."""

from __future__ import annotations

import os
import tempfile
import time
import wave

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))
SAMPLE_RATE = 16000
SPEAKERS = 20


def write_noises(folder: str, count: int) -> list[str]:
    """Writes coloured sounds of some twenty seconds; returns their paths."""
    rng = np.random.default_rng(11)
    paths = []
    for i in range(count):
        length = int(SAMPLE_RATE * rng.uniform(15, 32))
        sound = rng.standard_normal(length, dtype=np.float32)
        sound[1:] += float(rng.uniform(0, 0.95)) * sound[:-1]
        sound *= 0.6 + 0.4 * np.sin(np.arange(length, dtype=np.float32) * (2e-4 * (i + 1)))
        paths.append(os.path.join(folder, f"noise_{i:03d}.wav"))
        with wave.open(paths[-1], "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SAMPLE_RATE)
            file.writeframes((sound * 6000).clip(-32000, 32000).astype("<i2").tobytes())
    return paths


def load_wave(path: str) -> torch.Tensor:
    """A file's samples as floats between -1 and 1."""
    with wave.open(path, "rb") as file:
        if file.getframerate() != SAMPLE_RATE:
            raise ValueError(f"{path}: {file.getframerate()} Hz")
        raw = file.readframes(file.getnframes())
    return torch.from_numpy(np.frombuffer(raw, "<i2").astype(np.float32)) / 32768.0


class NoiseLoader:
    """Hands out a stretch of a noise chosen at random."""

    def __init__(self, paths: list[str], preload: bool):
        self.paths = paths
        self.kept = [load_wave(path) for path in paths] if preload else None

    def sample(self, length: int) -> torch.Tensor:
        choice = int(torch.randint(len(self.paths), ()))
        if self.kept is not None:
            noise = self.kept[choice]
        else:
            noise = load_wave(self.paths[choice])
        begin = int(torch.randint(max(1, noise.shape[0] - length), ()))
        return noise[begin : begin + length]


def add_noise(batch: torch.Tensor, loader: NoiseLoader, low: float = 0.0, high: float = 15.0) -> torch.Tensor:
    """Mixes a noise into each recording, at a ratio drawn in decibels."""
    n, length = batch.shape
    noises = torch.stack([loader.sample(length) for _ in range(n)])
    ratio = torch.rand(n, 1) * (high - low) + low
    signal_power = batch.square().mean(1, keepdim=True)
    noise_power = noises.square().mean(1, keepdim=True).clamp(min=1e-8)
    return batch + noises * (signal_power / noise_power * 10 ** (-ratio / 10)).sqrt()


def rand_amp_clip(batch: torch.Tensor) -> torch.Tensor:
    """Clips all of the batch at one level and brings it back to its loudness."""
    level = float(torch.rand(())) * 0.4 + 0.6
    peak = batch.abs().amax(1, keepdim=True).clamp(min=1e-6)
    return torch.minimum(torch.maximum(batch, -level * peak), level * peak)


def time_dropout(batch: torch.Tensor, count: int = 4, longest: int = 800) -> torch.Tensor:
    """Silences a few short stretches of each recording."""
    n, length = batch.shape
    begin = torch.randint(length - longest, (n, count, 1))
    size = torch.randint(longest, (n, count, 1))
    place = torch.arange(length)
    inside = ((place >= begin) & (place < begin + size)).any(1)
    return batch.masked_fill(inside, 0.0)


class Wav2Aug:
    """Applies two distortions, drawn anew for each batch; noise is always among them."""

    def __init__(self, loader: NoiseLoader):
        self.loader = loader
        self.others = (rand_amp_clip, time_dropout)

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        other = self.others[int(torch.randint(len(self.others), ()))]
        return other(add_noise(batch, self.loader))


class Voices(Dataset):
    """Made-up speakers: each has a pitch and a set of overtones."""

    def __init__(self, count: int, seconds: float, seed: int):
        rng = np.random.default_rng(seed)
        t = np.arange(int(seconds * SAMPLE_RATE), dtype=np.float32) / SAMPLE_RATE
        self.labels = rng.integers(SPEAKERS, size=count)
        self.sounds = np.empty((count, len(t)), dtype=np.float32)
        for i, label in enumerate(self.labels):
            pitch = 90 + 9 * label + rng.normal(0, 2)
            phase = 2 * np.pi * pitch * (t + 0.01 * np.sin(2 * np.pi * rng.uniform(2, 4) * t))
            self.sounds[i] = sum(np.sin(k * phase) / (1 + (k * label) % 5) for k in (1, 2, 3))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return torch.from_numpy(self.sounds[index]), int(self.labels[index])


class SpeakerNet(nn.Module):
    """Strided convolutions over the wave form, pooled by mean and deviation."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.front = nn.Conv1d(1, width, 80, stride=40)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 5, stride=2 if i < 2 else 1, padding=2) for i in range(4)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(4))
        self.head = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, SPEAKERS))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.front(sound[:, None]))
        for conv, norm in zip(self.layers, self.norms):
            h = F.relu(norm(conv(h)))
        return self.head(torch.cat([h.mean(-1), h.std(-1)], -1))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """Share of clean recordings whose speaker is found."""
    model.eval()
    right = sum(int((model(x).argmax(-1) == y).sum()) for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    train, held_out = Voices(480, 2.0, seed=1), Voices(64, 2.0, seed=2)
    with tempfile.TemporaryDirectory() as folder:
        augment = Wav2Aug(NoiseLoader(write_noises(folder, 40), preload=VARIANT != "a"))
        shuffle = torch.Generator().manual_seed(4)
        loader = DataLoader(train, batch_size=24, shuffle=True, drop_last=True, generator=shuffle)
        test_loader = DataLoader(held_out, batch_size=32)
        model = SpeakerNet()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS + 1)
        warm, step, epoch = min(10, STEPS // 2), 0, 0
        while step < STEPS:
            for sounds, labels in loader:
                if step == warm:
                    start = time.perf_counter()
                scores = model(augment(sounds))
                loss = F.cross_entropy(scores, labels, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                scheduler.step()
                step += 1
                if step == STEPS:
                    break
            epoch += 1
            if epoch % 10 == 0:
                print(f"epoch {epoch} loss {loss.item():.4f} found {evaluate(model, test_loader):.3f}")
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
