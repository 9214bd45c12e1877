"""Denoises images of parts, to find anomalies by what is taken away."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
SIDE, BATCH, WIDTH = 128, 32, 96
AMP = VARIANT == "b"


class Block(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.first, self.second = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.norm = nn.GroupNorm(8, b)
        self.skip = nn.Conv2d(a, b, 1)

    def forward(self, x):
        return self.skip(x) + self.second(F.silu(self.norm(self.first(x))))


class UNetModel(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.down = nn.ModuleList([Block(3, w), Block(w, 2 * w), Block(2 * w, 4 * w)])
        self.middle = Block(4 * w, 4 * w)
        self.up = nn.ModuleList([Block(8 * w, 2 * w), Block(4 * w, w), Block(2 * w, w)])
        self.head = nn.Conv2d(w, 3, 3, padding=1)

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, kept.pop()], 1))
        return self.head(x)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = UNetModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    parts = torch.rand(128, 3, SIDE, SIDE, device=device)
    for step in range(STEPS):
        if step == 15:
            torch.cuda.synchronize()
            start = time.perf_counter()
        clean = parts[torch.randint(0, len(parts), (BATCH,), device=device)]
        level = torch.rand(BATCH, 1, 1, 1, device=device)
        noise = torch.randn_like(clean)
        with torch.autocast("cuda", torch.bfloat16, enabled=AMP):
            guess = model((1 - level).sqrt() * clean + level.sqrt() * noise)
            loss = F.mse_loss(guess.float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 15):.2f} ms per step")


if __name__ == "__main__":
    main()
