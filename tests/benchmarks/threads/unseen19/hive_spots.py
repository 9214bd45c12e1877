"""Finds bees on photographs of honeycombs and marks their centres on a coarse grid."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
COMBS, SIDE, BATCH, CASTES = 96, 192, 8, 3


def make_combs():
    """Striped blobs on a pattern of cells; each cell of the grid knows which caste sits in it."""
    g = torch.Generator().manual_seed(12)
    rows = torch.arange(SIDE).float()
    pattern = 0.3 * torch.sin(rows[:, None] / 2.1) * torch.sin(rows[None] / 2.4)
    photos = pattern.repeat(COMBS, 3, 1, 1) + 0.1 * torch.randn(COMBS, 3, SIDE, SIDE, generator=g)
    grid = torch.zeros(COMBS, SIDE // 8, SIDE // 8, dtype=torch.long)
    for comb in range(COMBS):
        for _ in range(9):
            y, x = torch.randint(1, SIDE // 8 - 1, (2,), generator=g).tolist()
            caste = int(torch.randint(1, CASTES + 1, (1,), generator=g))
            photos[comb, caste - 1, 8 * y : 8 * y + 8, 8 * x - 4 : 8 * x + 12 : 2] += 1.2
            grid[comb, y, x] = caste
    return photos, grid


def block(into, out, kernel=3, stride=1):
    return nn.Sequential(
        nn.Conv2d(into, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out), nn.SiLU()
    )


class Neck(nn.Module):
    """Lets each place see the surroundings at three sizes."""

    def __init__(self, width, sizes=(5, 9, 13)):
        super().__init__()
        self.into, self.out = block(width, width // 2, 1), block(2 * width, width, 1)
        self.near = nn.MaxPool2d(sizes[0], 1, sizes[0] // 2)
        self.views = nn.ModuleList(nn.MaxPool2d(k, 1, k // 2) for k in sizes)

    def forward(self, x):
        x = self.into(x)
        if VARIANT == "a":
            return self.out(torch.cat([x] + [view(x) for view in self.views], 1))
        one = self.near(x)
        two = self.near(one)
        return self.out(torch.cat([x, one, two, self.near(two)], 1))


class BeeFinder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Sequential(block(3, width // 2, 3, 2), block(width // 2, width, 3, 2))
        self.down = block(width, 2 * width, 3, 2)
        self.residual = nn.Sequential(block(2 * width, width, 1), block(width, 2 * width))
        self.neck = Neck(2 * width)
        self.head = nn.Sequential(block(2 * width, width), nn.Conv2d(width, CASTES + 1, 1))

    def forward(self, photos):
        x = self.down(self.stem(photos))
        x = x + self.residual(x)
        return self.head(self.neck(x))


def main():
    torch.manual_seed(12)
    photos, grid = make_combs()
    model = BeeFinder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    rare = torch.tensor([0.1] + [1.0] * CASTES)
    warm = min(5, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, COMBS, (BATCH,))
        batch, wanted = photos[rows], grid[rows]
        if step % 2:
            batch, wanted = batch.flip(-1), wanted.flip(-1)
        loss = F.cross_entropy(model(batch), wanted, weight=rare)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"{step + 1} loss {loss.item():.4f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
