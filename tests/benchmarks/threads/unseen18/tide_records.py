"""Where the level of the sea goes next, from records of gauges that are years long."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 220))
BATCH = int(os.environ.get("BATCH", 2))
LENGTH = int(os.environ.get("LENGTH", 262144))
WIDTH = int(os.environ.get("WIDTH", 64))
DEPTH = int(os.environ.get("DEPTH", 8))
GAUGES = 12
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Causal(nn.Module):
    """A dilated convolution that sees the past only."""

    def __init__(self, width, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, width, 3, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(F.gelu(self.conv(F.pad(x, (self.pad, 0)))))


class PastMean(nn.Module):
    """Adds to each moment the mean of all moments until then."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        count = torch.arange(1, x.shape[1] + 1, device=x.device).unsqueeze(1)
        if VARIANT == "b":
            total = y.transpose(1, 2).contiguous().cumsum(2).transpose(1, 2)
        else:
            total = y.cumsum(1)
        return x + self.out(torch.cat([y, total / count], 2))


class TideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv1d(GAUGES, WIDTH, 1)
        self.layers = nn.Sequential(*[Causal(WIDTH, 2**k) for k in range(DEPTH)])
        self.past = PastMean(WIDTH)
        self.leave = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, GAUGES))

    def forward(self, levels):
        x = self.layers(self.enter(levels))
        return self.leave(self.past(x.transpose(1, 2)))


def record(count):
    hours = torch.arange(LENGTH + 1) / 6
    tides = torch.rand(count, GAUGES, 4, 1) * torch.sin(
        hours * torch.tensor([0.506, 0.5236, 0.2625, 0.0012]).view(1, 1, 4, 1)
        + 6 * torch.rand(count, GAUGES, 4, 1)
    )
    return tides.sum(2) + 0.1 * torch.randn(count, GAUGES, LENGTH + 1)


def main():
    torch.manual_seed(7)
    model = TideNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    records = record(4 * BATCH).to(device)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        levels = records[step % 4 * BATCH : (step % 4 + 1) * BATCH]
        guess = model(levels[:, :, :-1])
        loss = F.smooth_l1_loss(guess, levels[:, :, 1:].transpose(1, 2))
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
