"""Tells marsh birds apart by clips from field recorders of several makes."""

import os
import time

import numpy as np
import torch
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 160))
RATE, SECONDS, SPECIES = 16000, 2, 24


def recordings(number=600):
    rng = np.random.default_rng(0)
    clips = []
    for _ in range(number):
        rate = int(rng.choice([32000, 48000]))
        length = int(rng.integers(2 * rate, 3 * rate))
        clips.append((rate, rng.standard_normal(length, dtype=np.float32)))
    return clips


class FieldClips(Dataset):
    def __init__(self):
        self.clips = recordings()
        self.labels = np.random.default_rng(1).integers(0, SPECIES, len(self.clips))

    def __len__(self):
        return len(self.clips)

    def load(self, i):
        rate, clip = self.clips[i]
        if VARIANT == "b":
            return signal.resample_poly(clip, 1, rate // RATE)
        return signal.resample(clip, int(len(clip) * RATE / rate))

    def __getitem__(self, i):
        clip = self.load(i)
        start = np.random.randint(0, max(1, len(clip) - SECONDS * RATE))
        clip = clip[start : start + SECONDS * RATE]
        clip = clip / (np.abs(clip).max() + 1e-6)
        return torch.from_numpy(np.ascontiguousarray(clip, dtype=np.float32)), int(self.labels[i])


def collate(samples):
    clips = torch.zeros(len(samples), SECONDS * RATE)
    for row, (clip, _) in zip(clips, samples, strict=True):
        row[: len(clip)] = clip
    return clips, torch.tensor([label for _, label in samples])


class CallNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, SPECIES)

    def forward(self, clips):
        spectrum = torch.stft(clips, 512, hop_length=160, window=self.window, return_complex=True)
        return self.head(self.body(spectrum.abs().add(1e-4).log()[:, None]))


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    loader = DataLoader(FieldClips(), batch_size=8, shuffle=True, drop_last=True, collate_fn=collate)
    model = CallNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    step = 0
    while step < STEPS:
        for clips, labels in loader:
            if step == 5:
                start = time.perf_counter()
            loss = nn.functional.cross_entropy(model(clips), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
