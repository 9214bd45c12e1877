"""Trains a network that shifts one scan of a wood sample onto a second scan of it."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "220"))
BATCH = int(os.environ.get("BATCH", "1"))
SIDE = int(os.environ.get("SIDE", "24"))
WINDOW = int(os.environ.get("WINDOW", "9"))
HIDDEN = int(os.environ.get("HIDDEN", "8"))


class LocalCorrelation(nn.Module):
    """One less the squared correlation of two volumes within a window about each voxel."""

    def __init__(self, window, eps=1e-3):
        super().__init__()
        self.window = window
        self.eps = eps
        self.register_buffer("cube", torch.ones(1, 1, window, window, window))

    def window_sum(self, volume):
        half = self.window // 2
        if VARIANT == "a":
            return F.conv3d(volume, self.cube, padding=half)
        for axis in (2, 3, 4):
            size = volume.shape[axis]
            margin = [0] * 6
            margin[2 * (4 - axis) : 2 * (4 - axis) + 2] = [half + 1, half]
            total = F.pad(volume, margin).cumsum(axis)
            volume = total.narrow(axis, self.window, size) - total.narrow(axis, 0, size)
        return volume

    def forward(self, fixed, moved):
        count = self.window**3
        fixed_sum = self.window_sum(fixed)
        moved_sum = self.window_sum(moved)
        fixed_square = self.window_sum(fixed * fixed)
        moved_square = self.window_sum(moved * moved)
        product = self.window_sum(fixed * moved)
        cross = product - fixed_sum * moved_sum / count
        fixed_var = fixed_square - fixed_sum * fixed_sum / count
        moved_var = moved_square - moved_sum * moved_sum / count
        return 1 - (cross * cross / (fixed_var * moved_var + self.eps)).mean()


class ShiftNet(nn.Module):
    """Gives a small shift to each voxel of the moving scan."""

    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(2, hidden, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv3d(hidden, hidden, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv3d(hidden, hidden, 3, padding=1),
            nn.LeakyReLU(0.2),
        )
        self.flow = nn.Conv3d(hidden, 3, 3, padding=1)
        nn.init.normal_(self.flow.weight, std=1e-3)
        nn.init.zeros_(self.flow.bias)

    def forward(self, fixed, moving, grid):
        shift = self.flow(self.net(torch.cat([fixed, moving], dim=1)))
        moved = F.grid_sample(moving, grid + shift.permute(0, 2, 3, 4, 1), align_corners=True)
        return moved, shift


def roughness(shift):
    across = shift.diff(dim=2).square().mean() + shift.diff(dim=3).square().mean()
    return across + shift.diff(dim=4).square().mean()


def make_scans(count, side):
    rings = torch.linspace(0, 18, side)
    base = torch.sin(rings)[None, None, :, None, None] + 0.5 * torch.randn(count, 1, side, side, side)
    base = F.avg_pool3d(base, 3, 1, 1)
    return base, base.roll(1, dims=2) + 0.05 * torch.randn_like(base)


def main():
    torch.manual_seed(41)
    fixed, moving = make_scans(8, SIDE)
    model = ShiftNet(HIDDEN)
    similarity = LocalCorrelation(WINDOW)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    still = torch.eye(3, 4).expand(BATCH, 3, 4)
    grid = F.affine_grid(still, (BATCH, 1, SIDE, SIDE, SIDE), align_corners=True)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        pick = [(step * BATCH + i) % len(fixed) for i in range(BATCH)]
        moved, shift = model(fixed[pick], moving[pick], grid)
        loss = similarity(fixed[pick], moved) + 0.1 * roughness(shift)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
