"""Detection on lidar sweeps: points meet in pillars, the pillars become an image."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1300))
SWEEPS = int(os.environ.get("SWEEPS", 4))
POINTS, GRID, WIDTH = 40_000, 200, 64
PADDED = 0.08
PLAN = [(128, 1)] * 3 + [(256, 2)] + [(256, 1)] * 3 + [(512, 2)] + [(512, 1)] * 2
device = torch.device(os.environ.get("DEVICE", "cuda"))


class PointLayer(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.linear = nn.Linear(before, after, bias=False)
        self.norm = nn.LayerNorm(after)

    def forward(self, x):
        return F.relu(self.norm(self.linear(x)))


class PillarEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = PointLayer(5, WIDTH)
        self.second = PointLayer(2 * WIDTH, WIDTH)

    def mean(self, features, pillar, count):
        total = features.new_zeros(SWEEPS * GRID * GRID + 1, WIDTH)
        return total.index_add(0, pillar, features) / count

    def forward(self, points, pillar, count):
        x = self.first(points)
        pooled = self.mean(x, pillar, count)
        if VARIANT == "b":
            context = pooled.index_select(0, pillar)
        else:
            context = pooled[pillar]
        x = self.second(torch.cat([x, context], 1))
        canvas = self.mean(x, pillar, count)[1:]
        return canvas.view(SWEEPS, GRID, GRID, WIDTH).permute(0, 3, 1, 2)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = PillarEncoder()
        layers, before = [], WIDTH
        for after, stride in PLAN:
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            before = after
        self.backbone = nn.Sequential(*layers)
        self.heads = nn.Conv2d(before, 2 + 7, 1)

    def forward(self, points, pillar, count):
        return self.heads(self.backbone(self.encoder(points, pillar, count)))


def make_sweeps(generator):
    """Points of all sweeps, each with the number of its pillar; 0 takes what lies outside the range."""
    points = torch.randn(SWEEPS * POINTS, 5, generator=generator)
    cell = (points[:, :2] * GRID / 8 + GRID / 2).long().clamp(0, GRID - 1)
    sweep = torch.arange(SWEEPS).repeat_interleave(POINTS)
    pillar = 1 + (sweep * GRID + cell[:, 0]) * GRID + cell[:, 1]
    pillar[torch.rand(len(pillar), generator=generator) < PADDED] = 0
    count = torch.bincount(pillar, minlength=SWEEPS * GRID * GRID + 1).clamp(min=1)
    return points.to(device), pillar.to(device), count.float()[:, None].to(device)


def main():
    torch.manual_seed(0)
    model = Detector().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    generator = torch.Generator().manual_seed(1)
    sweeps = [make_sweeps(generator) for _ in range(4)]
    side = (GRID + 3) // 4
    wanted = torch.rand(4, SWEEPS, 9, side, side, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        output = model(*sweeps[step % 4])
        target = wanted[step % 4]
        scores = F.binary_cross_entropy_with_logits(output[:, :2], target[:, :2])
        loss = scores + F.smooth_l1_loss(output[:, 2:], target[:, 2:])
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
