"""Which of the speakers of a radio play is heard, moment by moment, by a transformer on spectra."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 160))
BATCH = int(os.environ.get("BATCH", 16))
LENGTH = int(os.environ.get("LENGTH", 500))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 20))
BANDS, SPEAKERS, LONGEST = 80, 12, 5000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Places(nn.Module):
    """Adds waves of many lengths to the moments."""

    def __init__(self, width):
        super().__init__()
        at = torch.arange(LONGEST).float().unsqueeze(1)
        speed = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        table = torch.zeros(1, LONGEST, width)
        table[0, :, 0::2], table[0, :, 1::2] = torch.sin(at * speed), torch.cos(at * speed)
        self.table, self.scale = table, math.sqrt(width)
        if VARIANT == "b":
            self.table = table.to(device)

    def forward(self, x):
        return x * self.scale + self.table[:, : x.shape[1]].to(x.device)


class SpeakerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv1d(BANDS, WIDTH, 3, padding=1)
        self.places = Places(WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            max(1, WIDTH // 64),
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.leave = nn.Linear(WIDTH, SPEAKERS)

    def forward(self, sound):
        x = F.gelu(self.enter(sound)).transpose(1, 2)
        return self.leave(self.layers(self.places(x)))


def plays(count):
    turns = (torch.rand(count, LENGTH) < 0.02).cumsum(1)
    speakers = (turns * 5 + torch.randint(0, SPEAKERS, (count, 1))) % SPEAKERS
    voices = torch.randn(SPEAKERS, BANDS)
    sound = voices[speakers].transpose(1, 2) + 1.5 * torch.randn(count, BANDS, LENGTH)
    return sound.to(device), speakers.to(device)


def main():
    torch.manual_seed(71)
    model = SpeakerNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    sounds, speakers = plays(16 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 16 * BATCH, (step % 16 + 1) * BATCH)
        scores = model(sounds[rows])
        loss = F.cross_entropy(scores.flatten(0, 1), speakers[rows].flatten())
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
