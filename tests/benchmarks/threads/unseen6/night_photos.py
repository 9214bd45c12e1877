"""Night photographs cleaned of noise, judged by structural similarity."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
BATCH = int(os.environ.get("BATCH", 4))
SIDE, CHANNELS = 128, 3


def gaussian(size, sigma):
    x = torch.arange(size) - (size - 1) / 2
    curve = torch.exp(-x.square() / (2 * sigma**2))
    return curve / curve.sum()


def filter2d(images, kernel):
    height, width = kernel.shape
    padded = F.pad(images, (width // 2, width // 2, height // 2, height // 2), mode="reflect")
    weight = kernel.expand(CHANNELS, 1, height, width)
    return F.conv2d(padded, weight, groups=CHANNELS)


class SSIMLoss(nn.Module):
    def __init__(self, window=21, sigma=3.0):
        super().__init__()
        curve = gaussian(window, sigma)
        self.register_buffer("curve", curve)
        self.register_buffer("kernel", curve[:, None] * curve[None, :])
        self.c1, self.c2 = 0.01**2, 0.03**2

    def blur(self, images):
        if VARIANT == "a":
            return filter2d(images, self.kernel)
        return filter2d(filter2d(images, self.curve[None, :]), self.curve[:, None])

    def forward(self, output, target):
        mu1, mu2 = self.blur(output), self.blur(target)
        sigma1 = self.blur(output.square()) - mu1.square()
        sigma2 = self.blur(target.square()) - mu2.square()
        sigma12 = self.blur(output * target) - mu1 * mu2
        top = (2 * mu1 * mu2 + self.c1) * (2 * sigma12 + self.c2)
        bottom = (mu1.square() + mu2.square() + self.c1) * (sigma1 + sigma2 + self.c2)
        return (1 - top / bottom).clamp(0, 2).mean() / 2


class Denoiser(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, width, 3, 2, 1)
        self.middle = nn.ModuleList([nn.Conv2d(width, width, 3, 1, 1) for _ in range(4)])
        self.last = nn.Conv2d(width, 4 * CHANNELS, 3, 1, 1)

    def forward(self, noisy):
        x = F.relu(self.first(noisy))
        for conv in self.middle:
            x = x + F.relu(conv(x))
        return noisy + F.pixel_shuffle(self.last(x), 2)


def main():
    torch.manual_seed(0)
    model, ssim = Denoiser(), SSIMLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    coarse = torch.rand(48, CHANNELS, SIDE // 8, SIDE // 8)
    clean = F.interpolate(coarse, scale_factor=8, mode="bicubic").clamp(0, 1)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        target = clean[torch.randint(0, len(clean), (BATCH,))]
        noisy = target + 0.1 * torch.randn_like(target)
        output = model(noisy)
        loss = F.l1_loss(output, target) + 0.5 * ssim(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
