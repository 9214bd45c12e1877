"""Grades loaves from photos of their crust, for the belt of a bakery."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 190))
LOAVES, SIDE, BATCH, GRADES = 800, 40, 16, 5


def make_loaves():
    """Brown discs with cracks; the longer baked, the darker, and the grade peaks in the middle."""
    g = torch.Generator().manual_seed(41)
    bake = torch.rand(LOAVES, generator=g)
    axis = torch.linspace(-1, 1, SIDE)
    disc = (axis[:, None] ** 2 + axis[None] ** 2 < 0.8).float()
    tone = torch.stack([1 - 0.5 * bake, 0.8 - 0.6 * bake, 0.5 - 0.4 * bake], 1)
    photo = disc * tone[:, :, None, None]
    crack = F.avg_pool2d(torch.randn(LOAVES, 1, SIDE + 4, SIDE + 4, generator=g), 5, stride=1)
    photo = photo + 0.4 * crack * bake[:, None, None, None]
    grade = ((1 - (2 * bake - 1).abs()) * GRADES).long().clamp(max=GRADES - 1)
    return photo + 0.05 * torch.randn(photo.shape, generator=g), grade


class Glide(torch.autograd.Function):
    """x * sigmoid(x), with nothing but x kept for the way back."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grad * (gate * (1 + x * (1 - gate)))


class Bend(nn.Module):
    def forward(self, x):
        return Glide.apply(x) if VARIANT == "a" else F.silu(x)


class Block(nn.Module):
    """Widen, look around in each channel, weigh the channels, narrow again."""

    def __init__(self, come, go, stride, widen=4):
        super().__init__()
        mid = widen * come
        self.widen = nn.Sequential(nn.Conv2d(come, mid, 1, bias=False), nn.BatchNorm2d(mid), Bend())
        self.look = nn.Sequential(
            nn.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False), nn.BatchNorm2d(mid), Bend()
        )
        self.weigh = nn.Sequential(nn.Conv2d(mid, come, 1), Bend(), nn.Conv2d(come, mid, 1), nn.Sigmoid())
        self.narrow = nn.Sequential(nn.Conv2d(mid, go, 1, bias=False), nn.BatchNorm2d(go))
        self.skip = stride == 1 and come == go

    def forward(self, x):
        y = self.look(self.widen(x))
        y = self.narrow(y * self.weigh(y.mean((2, 3), keepdim=True)))
        return x + y if self.skip else y


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        Bend(),
        Block(16, 16, 1),
        Block(16, 24, 2),
        Block(24, 24, 1),
        Block(24, 40, 2),
        nn.Conv2d(40, 96, 1),
        Bend(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, GRADES),
    )


def main():
    torch.manual_seed(41)
    photos, grades = make_loaves()
    model = make_model()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, LOAVES, (BATCH,))
        loss = F.cross_entropy(model(photos[rows]), grades[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
