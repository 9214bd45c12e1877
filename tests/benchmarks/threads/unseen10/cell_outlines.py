"""Outlines cells in whole microscope fields, which are kept in memory as they were taken."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1300))
BATCH = int(os.environ.get("BATCH", 8))
SIDE = int(os.environ.get("SIDE", 1024))
FIELDS = int(os.environ.get("FIELDS", 96))
WIDTH = int(os.environ.get("WIDTH", 64))
device = torch.device(os.environ.get("DEVICE", "cuda"))


def take_fields():
    """Round cells of several sizes in two stains, over an uneven background with shot noise."""
    down = SIDE // 8
    images = torch.empty(FIELDS, 3, SIDE, SIDE, dtype=torch.uint8)
    masks = torch.empty(FIELDS, SIDE, SIDE, dtype=torch.uint8)
    for n in range(FIELDS):
        seeds = (torch.rand(1, 1, down, down) < 0.01).float()
        near = F.avg_pool2d(F.max_pool2d(seeds, 5, 1, 2), 3, 1, 1)
        cells = F.interpolate(near, size=(SIDE, SIDE), mode="bilinear")[0, 0]
        light = F.interpolate(torch.rand(1, 1, 4, 4), size=(SIDE, SIDE), mode="bicubic")[0, 0]
        kind = F.interpolate(torch.rand(1, 1, down // 4, down // 4), size=(SIDE, SIDE))[0, 0]
        stains = torch.stack([cells, cells * (kind > 0.5), cells * (kind < 0.2)])
        seen = 40 + 60 * light + 110 * stains + 12 * torch.randn(3, SIDE, SIDE)
        images[n] = seen.clamp(0, 255).byte()
        masks[n] = (cells > 0.5).byte() * (1 + (kind > 0.5).byte())
    return images, masks


class Double(nn.Sequential):
    def __init__(self, inputs, outputs):
        layers = []
        for n in (inputs, outputs):
            convolution = nn.Conv2d(n, outputs, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(True)]
        super().__init__(*layers)


class CellNet(nn.Module):
    """A U-Net that starts and ends at a quarter of the field's side."""

    def __init__(self, classes=3):
        super().__init__()
        widths = [WIDTH * 2**n for n in range(4)]
        self.stem = nn.Conv2d(3, WIDTH, 7, stride=4, padding=3)
        self.down = nn.ModuleList([Double(a, b) for a, b in zip([WIDTH, *widths], widths, strict=False)])
        self.up = nn.ModuleList([Double(a + b, a) for a, b in zip(widths, widths[1:], strict=False)])
        self.head = nn.Conv2d(WIDTH, classes * 16, 1)

    def forward(self, x):
        x, kept = F.relu(self.stem(x)), []
        for layer in self.down:
            x = layer(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for layer, side in zip(reversed(self.up), reversed(kept[:-1]), strict=True):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2.0), side], 1))
        return F.pixel_shuffle(self.head(x), 4)


def to_model(images):
    """The fields as the model wants them: floats on its device, around zero."""
    if VARIANT == "a":
        x = images.to(device, dtype=torch.float32)
    else:
        x = images.to(device).to(torch.float32)
    return x.div_(127.5).sub_(1.0)


def main():
    torch.manual_seed(96)
    images, masks = take_fields()
    model = CellNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    weights = torch.tensor([0.5, 1.0, 1.5], device=device)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        first = int(torch.randint(0, FIELDS - BATCH + 1, ()))
        x = to_model(images[first : first + BATCH])
        wanted = masks[first : first + BATCH].to(device).long()
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(x.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(scores.float(), wanted, weights)
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
