"""Trains a learnt filter bank that tells running engines apart by short pieces of their sound."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1900"))
BATCH = int(os.environ.get("BATCH", "16"))
SAMPLES = int(os.environ.get("SAMPLES", "16000"))
FILTERS = int(os.environ.get("FILTERS", "64"))
WINDOW = 400
HOP = 160
ENGINES = 8


def cut_frames(sound, window, hop):
    """Cuts (batch, samples) into overlapping frames: (batch, frames, window)."""
    if VARIANT == "a":
        columns = F.unfold(sound[:, None, None, :], kernel_size=(1, window), stride=(1, hop))
        return columns.transpose(1, 2)
    return sound.unfold(-1, window, hop)


class PreEmphasis(nn.Module):
    """Raises the high notes by a learnt amount."""

    def __init__(self):
        super().__init__()
        self.amount = nn.Parameter(torch.tensor(0.9))

    def forward(self, sound):
        return sound - self.amount * F.pad(sound[:, :-1], (1, 0))


class FilterBank(nn.Module):
    def __init__(self, filters):
        super().__init__()
        self.register_buffer("taper", torch.hann_window(WINDOW))
        self.weights = nn.Parameter(torch.randn(WINDOW, filters) / WINDOW**0.5)

    def forward(self, sound):
        frames = cut_frames(sound, WINDOW, HOP)
        response = torch.matmul(frames, self.weights * self.taper[:, None])
        return torch.log1p(response.square())


class EngineNet(nn.Module):
    def __init__(self, filters, engines):
        super().__init__()
        self.emphasis = PreEmphasis()
        self.bank = FilterBank(filters)
        self.body = nn.Sequential(nn.Linear(filters, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, engines)

    def forward(self, sound):
        x = self.bank(self.emphasis(sound))
        return self.head(self.body(x).mean(1))


def make_sounds(count):
    kinds = torch.randint(0, ENGINES, (count,))
    time_axis = torch.arange(SAMPLES) / 8000
    pitch = 60 + 25 * kinds[:, None] + torch.randn(count, 1)
    sounds = torch.sin(6.2832 * pitch * time_axis) + 0.7 * torch.randn(count, SAMPLES)
    return sounds, kinds


def main():
    torch.manual_seed(3)
    sounds, kinds = make_sounds(160)
    model = EngineNet(FILTERS, ENGINES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    picks = torch.randint(0, len(sounds), (STEPS, BATCH))

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        scores = model(sounds[picks[step]])
        loss = F.cross_entropy(scores, kinds[picks[step]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
