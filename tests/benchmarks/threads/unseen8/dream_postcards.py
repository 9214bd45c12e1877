"""Paints postcards that excite chosen channels of a network for pictures."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
SIZE, CARDS = 112, 4


def stage(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def picture_network():
    network = nn.Sequential(stage(3, 24), stage(24, 48), stage(48, 96), stage(96, 192)).eval()
    if VARIANT == "b":
        network.requires_grad_(False)
    return network


class Postcards(nn.Module):
    """The pictures, kept as their spectra, so that coarse shapes move as fast as fine ones."""

    def __init__(self):
        super().__init__()
        frequency = torch.fft.rfftfreq(SIZE), torch.fft.fftfreq(SIZE)
        strength = 1 / (frequency[1][:, None] ** 2 + frequency[0] ** 2).sqrt().clamp(min=1 / SIZE)
        self.register_buffer("strength", strength)
        self.spectra = nn.Parameter(0.01 * torch.randn(CARDS, 3, SIZE, SIZE // 2 + 1, 2))

    def forward(self):
        pictures = torch.fft.irfft2(torch.view_as_complex(self.spectra) * self.strength, s=(SIZE, SIZE))
        return torch.sigmoid(pictures)


def shaken(pictures):
    dx, dy = torch.randint(-8, 9, (2,)).tolist()
    return torch.roll(pictures, (dx, dy), dims=(2, 3)) + 0.02 * torch.randn_like(pictures)


def main():
    torch.manual_seed(0)
    network = picture_network()
    postcards = Postcards()
    channels = torch.arange(CARDS)
    optimizer = torch.optim.Adam(postcards.parameters(), lr=0.05)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        activity = network(shaken(postcards()))
        excited = activity.mean(dim=(2, 3))[torch.arange(CARDS), channels]
        loss = -excited.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"excited {excited.mean().item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
