"""Names the coral in small photos of a reef survey; a batch knows the dives it came from."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 360))
PHOTOS, SIDE, CORALS, BATCH = 1200, 24, 8, 8


class Photos(torch.Tensor):
    """Pixels of a batch, with the number of the dive of each, also after they were changed."""

    @classmethod
    def of(cls, pixels, dives):
        photos = pixels.as_subclass(cls)
        photos.dives = dives
        return photos

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(result, Photos):
            for argument in args:
                if isinstance(argument, Photos) and "dives" in argument.__dict__:
                    result.__dict__.update(argument.__dict__)
        return result

    def brightest_dive(self):
        light = self.as_subclass(torch.Tensor).mean((1, 2, 3))
        return int(self.dives[light.argmax()])


def make_photos():
    """Blobs whose spacing and hue tell the coral, under water of changing blue."""
    g = torch.Generator().manual_seed(17)
    corals = torch.randint(0, CORALS, (PHOTOS,), generator=g)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    turn = 3 * torch.rand(PHOTOS, 1, 1, generator=g)
    waves = torch.sin(x * (0.3 + 0.15 * corals[:, None, None]) + turn) * torch.cos(y * 0.5 + turn)
    hue = torch.stack([corals % 3 == n for n in range(3)], 1).float()[:, :, None, None]
    pixels = waves[:, None] * (0.4 + hue) + 0.5 * torch.randn(PHOTOS, 3, SIDE, SIDE, generator=g)
    return pixels, corals, torch.randint(0, 40, (PHOTOS,), generator=g)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.gate = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        squeezed = torch.sigmoid(y.mean((2, 3), keepdim=True))
        return x + y * squeezed * self.gate


class CoralNet(nn.Module):
    def __init__(self, width=8, depth=30):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.body = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, CORALS)

    def forward(self, photos):
        return self.head(self.body(self.stem(photos)).mean((2, 3)))


def main():
    torch.manual_seed(17)
    pixels, corals, dives = make_photos()
    model = CoralNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    warm, seen = min(10, STEPS // 2), set()
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, PHOTOS, (BATCH,))
        photos = Photos.of(pixels[rows], dives[rows])
        seen.add(photos.brightest_dive())
        inputs = photos if VARIANT == "a" else photos.as_subclass(torch.Tensor)
        loss = F.cross_entropy(model(inputs), corals[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, {len(seen)} dives with bright photos")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
