"""Broken pottery rings, completed: from a part of the points of a scan to all of them."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
BATCH = int(os.environ.get("BATCH", 64))
POINTS = int(os.environ.get("POINTS", 1024))
WIDTH = int(os.environ.get("WIDTH", 256))
SHARP = 40.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Reader(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.second = nn.Sequential(
            nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 4 * width)
        )

    def forward(self, part):
        x = self.first(part)
        x = torch.cat([x, x.amax(1, keepdim=True).expand_as(x)], -1)
        return self.second(x).amax(1)


class Completion(nn.Module):
    """Coarse points from the code of the scan, each then moved by a small net."""

    def __init__(self, width):
        super().__init__()
        self.read = Reader(width)
        self.coarse = nn.Sequential(
            nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 3 * POINTS)
        )
        self.fold = nn.Sequential(
            nn.Linear(4 * width + 3, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
            nn.ReLU(),
            nn.Linear(width, 3),
        )

    def forward(self, part):
        code = self.read(part)
        coarse = self.coarse(code).view(len(part), POINTS, 3)
        around = code[:, None].expand(-1, POINTS, -1)
        return coarse + self.fold(torch.cat([around, coarse], -1))


def nearest(made, real):
    """Squared distance to the nearest point of the other set, and which one it is, both ways."""
    distance = (
        made.square().sum(-1)[:, :, None] + real.square().sum(-1)[:, None] - 2 * made @ real.transpose(1, 2)
    ).clamp(min=0)
    to_real, which_real = distance.min(2)
    to_made, which_made = distance.min(1)
    return to_real, to_made, which_real, which_made


def weights_of(which):
    """Points that are the nearest of many others count less for each of them."""
    if VARIANT == "b":
        counts = torch.zeros_like(which).scatter_add_(1, which, torch.ones_like(which))
        return 1 / (counts.gather(1, which).float() + 1e-6)
    rows = []
    for one in which:
        counts = torch.bincount(one, minlength=POINTS)
        rows.append(1 / (counts[one].float() + 1e-6))
    return torch.stack(rows)


def density_aware(made, real):
    to_real, to_made, which_real, which_made = nearest(made, real)
    forth, back = torch.exp(-SHARP * to_real), torch.exp(-SHARP * to_made)
    loss = (1 - forth * weights_of(which_real)).mean(1) + (1 - back * weights_of(which_made)).mean(1)
    return loss.mean() / 2, to_real.mean() + to_made.mean()


def rings(count):
    """Points on rings of different thickness, and those of them that were found."""
    turn, around = 6.2832 * torch.rand(2, count, POINTS)
    thick = 0.1 + 0.3 * torch.rand(count, 1)
    out = 1 + thick * around.cos()
    whole = torch.stack([out * turn.cos(), out * turn.sin(), thick * around.sin()], -1)
    order = (turn - 6.2832 * torch.rand(count, 1)).sin().argsort(1)[:, : POINTS // 2]
    part = whole.gather(1, order[..., None].expand(-1, -1, 3))
    return part.to(device), whole.to(device)


def main():
    torch.manual_seed(11)
    model = Completion(WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    parts, wholes = rings(8 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        dense, chamfer = density_aware(model(parts[rows]), wholes[rows])
        loss = dense + 0.1 * chamfer
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
