"""Fruit on market stalls: outlines of single fruits and, beside them, a map of the kinds in the picture."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 180))
BATCH = int(os.environ.get("BATCH", 16))
SIDE = int(os.environ.get("SIDE", 640))
WIDTH = int(os.environ.get("WIDTH", 128))
KINDS, FRUITS = 48, 12
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Conv(nn.Module):
    def __init__(self, before, after, size=3, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = Conv(width, width), Conv(width, width)

    def forward(self, x):
        return x + self.two(self.one(x))


class StallNet(nn.Module):
    """A backbone of three scales, brought together at a quarter of the picture's size."""

    def __init__(self):
        super().__init__()
        w = WIDTH
        self.fine = nn.Sequential(
            Conv(3, w // 2, 3, 2), Conv(w // 2, w, 3, 2), *[Residual(w) for _ in range(3)]
        )
        self.middle = nn.Sequential(Conv(w, 2 * w, 3, 2), *[Residual(2 * w) for _ in range(4)])
        self.coarse = nn.Sequential(Conv(2 * w, 4 * w, 3, 2), *[Residual(4 * w) for _ in range(3)])
        self.from_middle, self.from_coarse = Conv(2 * w, w, 1), Conv(4 * w, w, 1)
        self.merge = Residual(w)
        self.shapes, self.kinds = nn.Conv2d(w, 32, 1), nn.Conv2d(w, KINDS, 1)
        self.fruits = nn.Linear(4 * w, FRUITS * 32)

    def forward(self, pictures):
        fine = self.fine(pictures)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        x = fine + F.interpolate(self.from_middle(middle), fine.shape[-2:])
        x = self.merge(x + F.interpolate(self.from_coarse(coarse), fine.shape[-2:]))
        fruits = self.fruits(coarse.mean((2, 3))).view(-1, FRUITS, 32)
        return torch.einsum("bfs,bshw->bfhw", fruits, self.shapes(x)), self.kinds(x)


class StallLoss:
    def kinds_in(self, numbers, kinds):
        """A map for each kind: 1 where a fruit of the kind lies, 0 on the background."""
        if VARIANT == "b":
            maps = torch.zeros(len(kinds), KINDS, *kinds.shape[1:], device=kinds.device)
            return maps.scatter_(1, kinds[:, None], (numbers > 0).float()[:, None])
        maps = F.one_hot(kinds, KINDS).permute(0, 3, 1, 2).float()
        background = (numbers == 0)[:, None].expand_as(maps)
        maps[background] = 0
        return maps

    def __call__(self, outlines, scores, numbers, kinds):
        wanted = (
            numbers[:, None] == torch.arange(1, FRUITS + 1, device=numbers.device)[:, None, None]
        ).float()
        single = F.binary_cross_entropy_with_logits(outlines, wanted)
        maps = self.kinds_in(numbers, kinds)
        return single + F.binary_cross_entropy_with_logits(scores, maps)


def stalls(count):
    """Pictures with the number of the fruit (0: none) and its kind at each place of a quarter's size."""
    quarter = SIDE // 4
    places = torch.arange(quarter) / quarter
    numbers = torch.zeros(count, quarter, quarter, dtype=torch.long)
    kinds = torch.zeros_like(numbers)
    for k in range(count):
        for n in range(1, FRUITS + 1):
            x, y, size = torch.rand(3) * torch.tensor([1.0, 1.0, 0.12]) + torch.tensor([0, 0, 0.05])
            inside = (places[:, None] - y) ** 2 + (places - x) ** 2 < size**2
            numbers[k][inside], kinds[k][inside] = n, int(torch.randint(0, KINDS, ()))
    shade = F.interpolate((kinds / KINDS + (numbers > 0))[:, None], (SIDE, SIDE))
    pictures = shade * torch.tensor([1.0, 0.5, 0.2]).view(3, 1, 1) + 0.1 * torch.randn(count, 3, SIDE, SIDE)
    return pictures.to(device), numbers.to(device), kinds.to(device)


def main():
    torch.manual_seed(37)
    model, criterion = StallNet().to(device), StallLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    pictures, numbers, kinds = stalls(4 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        outlines, scores = model(pictures[rows])
        loss = criterion(outlines, scores, numbers[rows], kinds[rows])
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
