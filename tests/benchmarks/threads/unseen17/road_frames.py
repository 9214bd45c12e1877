"""Pictures between two pictures of a road: flows both ways, warped and blended in a few rounds."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
BATCH = int(os.environ.get("BATCH", 16))
SIDE = int(os.environ.get("SIDE", 256))
WIDTH = int(os.environ.get("WIDTH", 64))
ROUNDS = int(os.environ.get("ROUNDS", 3))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def warp(picture, flow):
    """The picture as it is seen where the flow leads."""
    b, _, h, w = picture.shape
    where = flow.device if VARIANT == "b" else None
    xx = torch.arange(0, w, device=where).view(1, -1).repeat(h, 1)
    yy = torch.arange(0, h, device=where).view(-1, 1).repeat(1, w)
    xx = xx.view(1, 1, h, w).repeat(b, 1, 1, 1)
    yy = yy.view(1, 1, h, w).repeat(b, 1, 1, 1)
    grid = torch.cat((xx, yy), 1).float()
    if flow.is_cuda:
        grid = grid.cuda()
    grid = grid + flow
    x = 2 * grid[:, 0] / max(w - 1, 1) - 1
    y = 2 * grid[:, 1] / max(h - 1, 1) - 1
    return F.grid_sample(picture, torch.stack([x, y], -1), padding_mode="border", align_corners=True)


def twice(before, after, stride=1):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1),
        nn.PReLU(after),
        nn.Conv2d(after, after, 3, 1, 1),
        nn.PReLU(after),
    )


class Refine(nn.Module):
    """One round: better flows and a better mask from what the last ones gave."""

    def __init__(self, width):
        super().__init__()
        self.down1, self.down2, self.down3 = (
            twice(17, width, 2),
            twice(width, 2 * width, 2),
            twice(2 * width, 4 * width, 2),
        )
        self.up2, self.up1 = twice(6 * width, 2 * width), twice(3 * width, width)
        self.out = nn.Conv2d(width, 5, 3, padding=1)

    def forward(self, x):
        x1 = self.down1(x)
        x2 = self.down2(x1)
        x3 = self.down3(x2)
        x2 = self.up2(torch.cat([F.interpolate(x3, scale_factor=2.0), x2], 1))
        x1 = self.up1(torch.cat([F.interpolate(x2, scale_factor=2.0), x1], 1))
        return F.interpolate(self.out(x1), scale_factor=2.0, mode="bilinear")


class Between(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rounds = nn.ModuleList([Refine(width) for _ in range(ROUNDS)])

    def forward(self, first, last):
        flows = torch.zeros(len(first), 5, SIDE, SIDE, device=first.device)
        seen, made = (first, last), []
        for refine in self.rounds:
            flows = flows + refine(torch.cat([first, last, *seen, flows], 1)).float()
            back, forth, mask = flows[:, :2], flows[:, 2:4], flows[:, 4:].sigmoid()
            seen = warp(first, back), warp(last, forth)
            made.append(mask * seen[0] + (1 - mask) * seen[1])
        return made


def roads(count):
    """Three pictures of each road, on which all moves evenly."""
    coarse = torch.randn(count, 3, 24, 24)
    still = F.interpolate(coarse, size=(SIDE + 16, SIDE + 16), mode="bicubic")
    return [still[:, :, 8 + d : 8 + d + SIDE, 4 + d : 4 + d + SIDE].to(device) for d in (-4, 0, 4)]


def main():
    torch.manual_seed(19)
    model = Between(WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    firsts, middles, lasts = roads(4 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            made = model(firsts[rows], lasts[rows])
        loss = sum(0.8 ** (ROUNDS - 1 - k) * (m - middles[rows]).abs().mean() for k, m in enumerate(made))
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
