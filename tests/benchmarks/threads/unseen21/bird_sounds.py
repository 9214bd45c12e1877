"""Writes down the songs of birds as words of a learned vocabulary: an autoencoder with a codebook."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
SONGS, FRAMES, BANDS, BATCH, WORDS = 300, 256, 40, 12, 2048


def make_songs():
    """Chirps that sweep through the bands, over a noisy wood."""
    g = torch.Generator().manual_seed(16)
    frames, bands = torch.arange(FRAMES)[:, None], torch.arange(BANDS)
    songs = torch.zeros(SONGS, FRAMES, BANDS)
    for _ in range(6):
        start = torch.rand(SONGS, 1, 1, generator=g) * FRAMES
        pitch = torch.rand(SONGS, 1, 1, generator=g) * BANDS
        slope = torch.randn(SONGS, 1, 1, generator=g) * 0.5
        along = (frames - start).clamp(min=0)
        songs += torch.exp(-along / 20) * (along > 0) * torch.exp(-((bands - pitch - slope * along) ** 2) / 4)
    return songs.transpose(1, 2) + 0.1 * torch.randn(SONGS, BANDS, FRAMES, generator=g)


class Vocabulary(nn.Module):
    """Replaces each vector by the nearest word."""

    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        nn.init.uniform_(self.words.weight, -0.5, 0.5)

    def forward(self, x):
        flat = x.transpose(1, 2).reshape(-1, x.shape[1])
        words = self.words.weight
        away = (
            flat.square().sum(1, keepdim=True)
            + words.square().sum(1)
            - 2 * flat.detach() @ words.detach().t()
        )
        nearest = away.argmin(1)
        if VARIANT == "a":
            chosen = torch.zeros(len(flat), WORDS).scatter_(1, nearest[:, None], 1)
            said = chosen @ words
        else:
            said = self.words(nearest)
        said = said.view(x.shape[0], x.shape[2], -1).transpose(1, 2)
        loss = F.mse_loss(said, x.detach()) + 0.25 * F.mse_loss(x, said.detach())
        return x + (said - x).detach(), loss


class SongCoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv1d(BANDS, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, width, 3, padding=1)
        )
        self.vocabulary = Vocabulary(width)
        self.decode = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, BANDS, 3, padding=1)
        )

    def forward(self, songs):
        said, loss = self.vocabulary(self.encode(songs))
        return self.decode(said), loss


def main():
    torch.manual_seed(16)
    songs = make_songs()
    model = SongCoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        batch = songs[torch.randint(0, SONGS, (BATCH,))]
        again, words_loss = model(batch)
        loss = F.mse_loss(again, batch) + words_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
