"""Pollen grains under the microscope: equalised slides of small pictures, a small residual network."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "620"))
BATCH = 96
SIDE = 32
WIDTH = 24
CLASSES = 10
device = torch.device("cpu")


def scale_channel(channel):
    hist = torch.bincount(channel.reshape(-1), minlength=256)
    nonzero = hist[hist != 0]
    step = torch.div(nonzero[:-1].sum(), 255, rounding_mode="floor")
    if step == 0:
        return channel
    lut = torch.div(
        torch.cumsum(hist, 0) + torch.div(step, 2, rounding_mode="floor"), step, rounding_mode="floor"
    )
    lut = F.pad(lut, [1, 0])[:-1].clamp(0, 255)
    return lut[channel.to(torch.int64)].to(torch.uint8)


def equalize(images):
    """Histogram equalisation of each channel of uint8 images (batch, 3, side, side)."""
    if VARIANT == "a":
        done = [torch.stack([scale_channel(image[c]) for c in range(image.shape[0])]) for image in images]
        return torch.stack(done)
    flat = images.flatten(2).long()
    hist = flat.new_zeros(*flat.shape[:2], 256)
    hist.scatter_add_(-1, flat, torch.ones_like(flat))
    total = hist.cumsum(dim=-1)
    highest = total.argmax(dim=-1, keepdim=True)
    step = (flat.shape[-1] - hist.gather(-1, highest)) // 255
    usable = step != 0
    safe = step.clamp(min=1)
    lut = F.pad((total + safe // 2) // safe, [1, 0])[..., :-1].clamp(0, 255)
    out = torch.where(usable, lut.gather(-1, flat), flat)
    return out.to(torch.uint8).view_as(images)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


class PollenNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, stride=2, padding=1), nn.ReLU())
        self.body = nn.Sequential(Residual(WIDTH), nn.MaxPool2d(2), Residual(WIDTH), Residual(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = (images.float() - 127.5) / 64
        x = self.body(self.stem(x))
        return self.head(x.mean(dim=(2, 3)))


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(13)
    labels = torch.randint(0, CLASSES, (4096,), generator=gen)
    base = 40 + 12 * labels.view(-1, 1, 1, 1) + 20 * torch.randn(4096, 3, SIDE, SIDE, generator=gen)
    slides = base.clamp(0, 255).to(torch.uint8)
    model = PollenNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        pick = torch.randint(0, len(labels), (BATCH,), generator=gen)
        images = equalize(slides[pick])
        logits = model(images.to(device))
        loss = F.cross_entropy(logits, labels[pick].to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * took / max(1, STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
