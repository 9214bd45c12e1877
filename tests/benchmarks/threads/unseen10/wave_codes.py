"""A codec for speech: waves to a few codes per second and back, against critics of several periods."""

import os

if os.environ.get("VARIANT", "a") == "a":
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

STEPS = int(os.environ.get("STEPS", 900))
BATCH = int(os.environ.get("BATCH", 8))
SAMPLES = int(os.environ.get("SAMPLES", 12000))
WIDTH = int(os.environ.get("WIDTH", 32))
CLIPS = int(os.environ.get("CLIPS", 200))
STRIDES, CODES, PERIODS = (2, 4, 5, 6), 1024, (2, 3, 5, 7, 11)
device = torch.device(os.environ.get("DEVICE", "cuda"))


def conv(inputs, outputs, size, stride=1, dilation=1):
    padding = (dilation * (size - 1) + 1 - stride + 1) // 2
    return weight_norm(nn.Conv1d(inputs, outputs, size, stride, padding, dilation))


class Residual(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(nn.ELU(), conv(width, half, 3, 1, dilation), nn.ELU(), conv(half, width, 1))

    def forward(self, x):
        return x + self.body(x)


def encoder():
    layers, width = [conv(1, WIDTH, 7)], WIDTH
    for stride in STRIDES:
        layers += [Residual(width, 1), Residual(width, 3), nn.ELU()]
        layers += [conv(width, 2 * width, 2 * stride, stride)]
        width *= 2
    return nn.Sequential(*layers, nn.ELU(), conv(width, 128, 3))


def decoder():
    width = WIDTH * 2 ** len(STRIDES)
    layers = [conv(128, width, 7)]
    for stride in reversed(STRIDES):
        layers += [nn.ELU(), nn.Upsample(scale_factor=float(stride)), conv(width, width // 2, 2 * stride + 1)]
        width //= 2
        layers += [Residual(width, 1), Residual(width, 3)]
    return nn.Sequential(*layers, nn.ELU(), conv(width, 1, 7), nn.Tanh())


class Quantizer(nn.Module):
    """The nearest of CODES vectors, with the gradient passed straight through."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, 128) * 0.3)

    def forward(self, x):
        x = x.transpose(1, 2)
        gaps = -2 * x @ self.codes.t() + self.codes.square().sum(1)
        found = F.embedding(gaps.argmin(-1), self.codes)
        cost = F.mse_loss(found, x.detach()) + 0.25 * F.mse_loss(x, found.detach())
        return (x + (found - x).detach()).transpose(1, 2), cost


class Critic(nn.Module):
    """Looks at every PERIOD-th sample side by side."""

    def __init__(self, period):
        super().__init__()
        self.period, sizes = period, (1, 16, 64, 128, 128)
        convs = [nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in zip(sizes, sizes[1:], strict=False)]
        self.layers = nn.ModuleList([weight_norm(layer) for layer in convs])
        self.last = weight_norm(nn.Conv2d(sizes[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, x):
        x = F.pad(x, (0, -x.shape[-1] % self.period), "reflect").unflatten(-1, (-1, self.period))
        seen = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            seen.append(x)
        return self.last(x), seen


def spectra(wave, windows):
    for window in windows:
        s = torch.stft(wave[:, 0], len(window), len(window) // 4, window=window, return_complex=True)
        yield s.abs().clamp_min(1e-5)


def record():
    """Voices: a gliding pitch with overtones under an envelope."""
    t = torch.arange(SAMPLES) / 24000
    pitch = 80 + 200 * torch.rand(CLIPS, 1) + 30 * torch.sin(2 * torch.pi * 3 * t + 6 * torch.rand(CLIPS, 1))
    phase = (2 * torch.pi * pitch / 24000).cumsum(1)
    tones = sum(torch.rand(CLIPS, 1) / n * torch.sin(n * phase) for n in range(1, 9))
    return (0.3 * tones * torch.sin(torch.pi * t * 5).abs() + 0.01 * torch.randn(CLIPS, SAMPLES))[:, None]


def main():
    torch.manual_seed(24)
    clips = record().to(device)
    into, codes, back = encoder().to(device), Quantizer().to(device), decoder().to(device)
    critics = nn.ModuleList([Critic(period) for period in PERIODS]).to(device)
    makers = [*into.parameters(), *codes.parameters(), *back.parameters()]
    makers_step = torch.optim.AdamW(makers, lr=2e-4, betas=(0.8, 0.9))
    critics_step = torch.optim.AdamW(critics.parameters(), lr=2e-4, betas=(0.8, 0.9))
    windows = [torch.hann_window(size, device=device) for size in (256, 512, 1024)]
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        wave = clips[torch.randint(0, CLIPS, (BATCH,), device=device)]
        latent, cost = codes(into(wave))
        made = back(latent)[..., :SAMPLES]
        scores = [(critic(made.detach())[0], critic(wave)[0]) for critic in critics]
        wrong = sum(F.relu(1 + a).mean() + F.relu(1 - b).mean() for a, b in scores)
        critics_step.zero_grad(set_to_none=True)
        wrong.backward()
        critics_step.step()
        critics.requires_grad_(False)
        pairs = zip(spectra(made, windows), spectra(wave, windows), strict=True)
        loss = cost + sum(F.l1_loss(a.log(), b.log()) for a, b in pairs)
        for critic in critics:
            with torch.no_grad():
                wanted = critic(wave)[1]
            score, seen = critic(made)
            loss = loss - 0.1 * score.mean() + sum(F.l1_loss(a, b) for a, b in zip(seen, wanted, strict=True))
        makers_step.zero_grad(set_to_none=True)
        loss.backward()
        makers_step.step()
        critics.requires_grad_(True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
