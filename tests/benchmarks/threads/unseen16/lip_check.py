"""Does the voice belong to the mouth? A net that tells clips of speech from clips with a shifted voice."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
BATCH = int(os.environ.get("BATCH", 96))
WIDTH = int(os.environ.get("WIDTH", 96))
WORKERS = int(os.environ.get("WORKERS", 12))
CLIPS = int(os.environ.get("CLIPS", 40))
SECONDS = int(os.environ.get("SECONDS", 12))
RATE, HOP, BANDS, FPS, SHOWN = 16000, 200, 80, 25, 5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def band_matrix():
    """Triangles that gather the frequencies in bands, narrow below and wide above."""
    edges = 700 * (10 ** (torch.linspace(0, 2840, BANDS + 2) / 2595) - 1)
    tones = torch.linspace(0, RATE / 2, 401)
    up = (tones - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - tones) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


def spectrogram(wave, bands, window):
    wave = torch.cat([wave[:1], wave[1:] - 0.97 * wave[:-1]])
    power = torch.stft(wave, 800, HOP, window=window, return_complex=True).abs()
    return (20 * torch.log10((bands @ power).clamp(min=1e-5)) + 100) / 100


class SpeechClips(Dataset):
    def __init__(self):
        self.bands, self.window = band_matrix(), torch.hann_window(800)
        seconds = torch.arange(SECONDS * RATE) / RATE
        self.voices, self.mouths = [], []
        for _ in range(CLIPS):
            pitch = 120 + 100 * torch.rand(1)
            loud = F.interpolate(torch.rand(1, 1, SECONDS * 4), SECONDS * RATE, mode="linear")[0, 0]
            self.voices.append(loud * torch.sin(6.28 * pitch * seconds) + 0.02 * torch.randn(len(seconds)))
            opened = loud[:: RATE // FPS, None, None, None] * 200
            self.mouths.append((opened + torch.randint(0, 50, (SECONDS * FPS, 3, 48, 96))).to(torch.uint8))
        if VARIANT == "b":
            self.spectra = [spectrogram(voice, self.bands, self.window) for voice in self.voices]

    def __len__(self):
        return 1000000

    def spectrum(self, clip):
        if VARIANT == "b":
            return self.spectra[clip]
        return spectrogram(self.voices[clip], self.bands, self.window)

    def __getitem__(self, index):
        clip = index % CLIPS
        first, other = torch.randint(0, SECONDS * FPS - 2 * SHOWN, (2,)).tolist()
        together = index // CLIPS % 2
        begin = int((first if together else other) / FPS * RATE / HOP)
        heard = self.spectrum(clip)[:, begin : begin + 16]
        return self.mouths[clip][first : first + SHOWN].flatten(0, 1), heard[None].clone(), float(together)


class Block(nn.Module):
    def __init__(self, before, after, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.same = before == after and stride == 1

    def forward(self, x):
        y = self.norm(self.conv(x))
        return F.relu(y + x if self.same else y)


def encoder(channels, strides):
    w, blocks = WIDTH, [Block(channels, WIDTH), Block(WIDTH, WIDTH)]
    for stride in strides:
        blocks += [
            Block(w, min(2 * w, 8 * WIDTH), stride),
            Block(min(2 * w, 8 * WIDTH), min(2 * w, 8 * WIDTH)),
        ]
        w = min(2 * w, 8 * WIDTH)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w, 256))


class LipNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.eye, self.ear = encoder(3 * SHOWN, (2, 2, 2, 2)), encoder(1, ((3, 1), 2, 2))

    def forward(self, mouths, heard):
        return F.cosine_similarity(self.eye(mouths), self.ear(heard))


def main():
    torch.manual_seed(47)
    model = LipNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    loader = DataLoader(SpeechClips(), BATCH, num_workers=WORKERS, pin_memory=device.type == "cuda")
    warm = min(30, STEPS // 2)
    for step, (mouths, heard, together) in zip(range(STEPS), loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        mouths, heard, together = (x.to(device, non_blocking=True) for x in (mouths, heard, together.float()))
        alike = model(mouths.float() / 255, heard)
        loss = F.binary_cross_entropy_with_logits(5 * alike, together)
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
