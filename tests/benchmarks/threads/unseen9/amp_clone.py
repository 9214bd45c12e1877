"""A guitar amplifier copied by a small WaveNet, judged by its waves and its spectra."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2500))
BATCH = int(os.environ.get("BATCH", 16))
LENGTH = int(os.environ.get("LENGTH", 16384))
CHANNELS = int(os.environ.get("CHANNELS", 16))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Layer(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation)
        self.mix = nn.Conv1d(1, 2 * channels, 1, bias=False)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x, dry):
        y = self.conv(x)
        y = y + self.mix(dry[..., -y.shape[-1] :])
        a, b = y.chunk(2, 1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x[..., -y.shape[-1] :] + self.out(y), y


class AmpNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Conv1d(1, CHANNELS, 1)
        self.layers = nn.ModuleList([Layer(CHANNELS, 2**i) for _ in range(2) for i in range(9)])
        self.head = nn.Conv1d(CHANNELS, 1, 1)
        self.field = 2 * 2 * (2**9 - 1)

    def forward(self, dry):
        x = self.inward(dry)
        length, total = dry.shape[-1] - self.field, 0.0
        for layer in self.layers:
            x, y = layer(x, dry)
            total = total + y[..., -length:]
        return self.head(total)[:, 0]


class SpectralLoss(nn.Module):
    """Distances of magnitudes at several resolutions."""

    def __init__(self, settings=((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))):
        super().__init__()
        self.settings = settings
        for k, (_, _, window) in enumerate(settings):
            self.register_buffer(f"window{k}", torch.hann_window(window))

    def forward(self, predicted, wanted):
        total = 0.0
        for k, (size, hop, width) in enumerate(self.settings):
            window = getattr(self, f"window{k}")
            a = torch.stft(predicted, size, hop, width, window, return_complex=True)
            b = torch.stft(wanted, size, hop, width, window, return_complex=True)
            a = (a.real.square() + a.imag.square()).clamp(min=1e-8).sqrt()
            b = (b.real.square() + b.imag.square()).clamp(min=1e-8).sqrt()
            converge = (b - a).norm() / b.norm()
            total = total + converge + F.l1_loss(a.log(), b.log())
        return total / len(self.settings)


def record(count):
    t = torch.arange(LENGTH + 2044) / 48000
    notes = torch.randint(40, 76, (count, 4, 1))
    waves = torch.sin(2 * torch.pi * 440 * 2 ** ((notes - 69) / 12) * t + 6 * torch.rand(count, 4, 1))
    dry = (waves * torch.exp(-6 * torch.rand(count, 4, 1) * t)).mean(1)
    wet = torch.tanh(6 * dry + 0.3 * dry.roll(7, -1))
    return dry[:, None], wet[:, 2044:]


class Trainer:
    def __init__(self, model):
        self.model = model
        self.spectral = SpectralLoss()
        if VARIANT == "b":
            self.spectral.to(device)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, fused=device.type == "cuda")

    def losses(self, predicted, wanted):
        mse = F.mse_loss(predicted, wanted)
        esr = mse / wanted.square().mean()
        if VARIANT == "a":
            mrstft = self.spectral(predicted.to("cpu"), wanted.to("cpu")).to(device)
        else:
            mrstft = self.spectral(predicted, wanted)
        return esr + 2e-4 * mrstft

    def step(self, dry, wet):
        loss = self.losses(self.model(dry), wet)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    torch.manual_seed(19)
    trainer = Trainer(AmpNet().to(device))
    dry, wet = (x.to(device) for x in record(8 * BATCH))
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        loss = trainer.step(dry[rows], wet[rows])
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
