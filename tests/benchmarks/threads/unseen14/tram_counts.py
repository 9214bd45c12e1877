"""Passengers of a city's tram stops, hour by hour: a recurrent net that foretells the next hour."""

import contextlib
import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 270))
BATCH = int(os.environ.get("BATCH", 64))
WIDTH = int(os.environ.get("WIDTH", 1024))
HOURS = int(os.environ.get("HOURS", 96))
STOPS = int(os.environ.get("STOPS", 256))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Cell(nn.Module):
    """A gated cell with a norm in front of its gates."""

    def __init__(self, before, width):
        super().__init__()
        self.see = weight_norm(nn.Linear(before, 3 * width))
        self.recall = weight_norm(nn.Linear(width, 3 * width, bias=False))
        self.norm = nn.LayerNorm(width)

    def forward(self, x, state):
        keep, mix, new = self.see(x).chunk(3, -1)
        old_keep, old_mix, old_new = self.recall(self.norm(state)).chunk(3, -1)
        keep, mix = torch.sigmoid(keep + old_keep), torch.sigmoid(mix + old_mix)
        return torch.lerp(torch.tanh(new + mix * old_new), state, keep)


class TramNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(STOPS + 2, WIDTH)
        self.first, self.second = Cell(WIDTH, WIDTH), Cell(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, STOPS)

    def forward(self, counts, clock):
        x = F.relu(self.enter(torch.cat([counts, clock], -1)))
        lower = upper = x.new_zeros(len(x), WIDTH)
        seen = []
        with parametrize.cached() if VARIANT == "b" else contextlib.nullcontext():
            for hour in x.unbind(1):
                lower = self.first(hour, lower)
                upper = self.second(lower, upper)
                seen.append(upper)
        return self.leave(torch.stack(seen, 1))


def weeks(count):
    """Counts of passengers at each stop, and the hour of the day as a point on a circle."""
    hours = torch.arange(HOURS + 1) + torch.randint(0, 24, (count, 1))
    angle = 2 * torch.pi * hours / 24
    size, lag = torch.rand(STOPS), torch.rand(STOPS) * 2
    counts = size * torch.sin(angle[..., None] - lag).relu() + 0.1 * torch.randn(count, HOURS + 1, STOPS)
    return counts.to(device), torch.stack([angle.sin(), angle.cos()], -1).to(device)


def main():
    torch.manual_seed(59)
    model = TramNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    counts, clock = weeks(16 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 16 * BATCH, (step % 16 + 1) * BATCH)
        foretold = model(counts[rows, :-1], clock[rows, :-1])
        loss = F.smooth_l1_loss(foretold, counts[rows, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
