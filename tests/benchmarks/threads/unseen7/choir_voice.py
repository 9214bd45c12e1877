"""A singer's voice: content units and pitch in, spectrogram frames out, on the CPU."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
BATCH = int(os.environ.get("BATCH", 8))
WIDTH = int(os.environ.get("WIDTH", 96))
FRAMES = int(os.environ.get("FRAMES", 400))
UNITS, BINS, CROP, SONGS = 128, 257, 128, 64


def repeat_expand_2d(content, target_len):
    """Stretches units (channels, time) to the number of frames of the spectrogram."""
    src_len = content.shape[-1]
    if VARIANT == "b":
        return F.interpolate(content[None], size=target_len, mode="nearest")[0]
    target = torch.zeros([content.shape[0], target_len], dtype=torch.float)
    temp = torch.arange(src_len + 1) * target_len / src_len
    current_pos = 0
    for i in range(target_len):
        if i < temp[current_pos + 1]:
            target[:, i] = content[:, current_pos]
        else:
            current_pos += 1
            target[:, i] = content[:, current_pos]
    return target


class Songs(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.units, self.pitch, self.spectra = [], [], []
        voice = torch.randn(UNITS, BINS, generator=g) / UNITS**0.5
        for _ in range(SONGS):
            frames = int(torch.randint(FRAMES * 3 // 4, FRAMES, (1,), generator=g))
            units = torch.randn(UNITS, frames // 2, generator=g)
            wide = F.interpolate(units[None], size=frames, mode="linear")[0]
            self.units.append(units)
            self.pitch.append(100 + 300 * torch.rand(frames, generator=g))
            self.spectra.append((wide.T @ voice).T.abs().contiguous())

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        i = index % SONGS
        spectrum, pitch = self.spectra[i], self.pitch[i]
        units = repeat_expand_2d(self.units[i], pitch.shape[0])
        first = index * 7919 % (pitch.shape[0] - CROP)
        cut = slice(first, first + CROP)
        return units[:, cut], pitch[cut].log()[None], spectrum[:, cut]


class Layer(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, 2 * WIDTH, 5, padding=2 * dilation, dilation=dilation)
        self.out = nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x):
        return x + self.out(F.glu(self.conv(x), 1))


class Singer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Conv1d(UNITS + 1, WIDTH, 1)
        self.layers = nn.Sequential(*[Layer(2 ** (i % 4)) for i in range(6)])
        self.outward = nn.Conv1d(WIDTH, BINS, 1)

    def forward(self, units, pitch):
        return self.outward(self.layers(self.inward(torch.cat([units, pitch], 1))))


def main():
    torch.manual_seed(81)
    model = Singer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Songs(), BATCH)
    warm = min(20, STEPS // 2)
    for step, (units, pitch, spectra) in enumerate(loader):
        if step == warm:
            start = time.perf_counter()
        loss = F.l1_loss(model(units, pitch), spectra)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
