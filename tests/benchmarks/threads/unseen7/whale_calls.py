"""Calls of whales cleaned of the noise of ships, by filters learned on the waves."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 16))
LENGTH = int(os.environ.get("LENGTH", 16000))
CHANNELS = int(os.environ.get("CHANNELS", 32))
TAPS = int(os.environ.get("TAPS", 1025))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class LongFilter(nn.Module):
    """Correlates every channel with a learned impulse response of TAPS samples."""

    def __init__(self, inputs, outputs):
        super().__init__()
        bound = (inputs * TAPS) ** -0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs, TAPS).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        if VARIANT == "a":
            return F.conv1d(x, self.weight, self.bias, padding=TAPS // 2)
        length = x.shape[-1]
        size = 1 << (length + TAPS - 2).bit_length()
        waves = torch.fft.rfft(x, size)
        responses = torch.fft.rfft(self.weight.flip(-1), size)
        mixed = torch.einsum("bif,oif->bof", waves, responses)
        y = torch.fft.irfft(mixed, size)[..., TAPS // 2 : TAPS // 2 + length]
        return y + self.bias[:, None]


class Refine(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.wide = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.back = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.back(F.glu(self.wide(self.norm(x)), 1))


class CallCleaner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Conv1d(1, CHANNELS, 9, padding=4)
        self.long = LongFilter(CHANNELS, CHANNELS)
        self.refine = nn.Sequential(*[Refine(CHANNELS, 2**i) for i in range(6)])
        self.outward = nn.Conv1d(CHANNELS, 1, 9, padding=4)

    def forward(self, waves):
        x = F.gelu(self.inward(waves))
        x = x + F.gelu(self.long(x))
        return self.outward(self.refine(x))


def make_calls(count):
    t = torch.arange(LENGTH) / 16000
    base = 100 + 400 * torch.rand(count, 1)
    sweep = 200 * torch.randn(count, 1)
    calls = torch.sin(2 * torch.pi * (base * t + 0.5 * sweep * t * t))
    calls = calls * torch.exp(-8 * (t - torch.rand(count, 1)).square())
    ships = F.avg_pool1d(torch.randn(count, 1, LENGTH + 16), 17, 1)[:, 0]
    return calls[:, None], (calls + 2 * ships)[:, None]


def spectral_distance(predicted, wanted):
    window = torch.hann_window(512, device=predicted.device)
    a = torch.stft(predicted[:, 0], 512, 128, window=window, return_complex=True).abs()
    b = torch.stft(wanted[:, 0], 512, 128, window=window, return_complex=True).abs()
    return (a - b).abs().mean()


def main():
    torch.manual_seed(11)
    model = CallCleaner().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    calls, noisy = (x.to(device) for x in make_calls(4 * BATCH))
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        cleaned = model(noisy[rows])
        loss = F.l1_loss(cleaned, calls[rows]) + spectral_distance(cleaned, calls[rows])
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
