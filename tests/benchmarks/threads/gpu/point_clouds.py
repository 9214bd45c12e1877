"""Segments clouds of points; prints how long each part of a step takes."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
CLOUDS = int(os.environ.get("CLOUDS", 1))
POINTS, NEIGHBOURS = 1024, 16


class KernelConv(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.mix = nn.Linear(before + 3, after)
        self.norm = nn.LayerNorm(after)
        self.out = nn.Linear(after, after)

    def forward(self, points, features, near):
        clouds = torch.arange(len(points), device=points.device)[:, None, None]
        offsets = points[clouds, near] - points[:, :, None]
        gathered = torch.cat([features[clouds, near], offsets], dim=-1)
        return torch.relu(self.out(self.norm(torch.relu(self.mix(gathered))).amax(2)))


class Segmenter(nn.Module):
    def __init__(self, width=96, depth=6):
        super().__init__()
        self.enter = nn.Linear(3, width)
        self.convs = nn.ModuleList(KernelConv(width, width) for _ in range(depth))
        self.leave = nn.Linear(width, 19)

    def forward(self, points, near):
        features = self.enter(points)
        for conv in self.convs:
            features = features + conv(points, features, near)
        return self.leave(features)


def mark(times):
    if VARIANT == "a":
        torch.cuda.synchronize()
    times.append(time.perf_counter())


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Segmenter().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.98)
    cpu = torch.rand(64, POINTS, 3).pin_memory()
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        times = [time.perf_counter()]
        picked = torch.randint(0, len(cpu) - CLOUDS + 1, ()).item()
        points = cpu[picked : picked + CLOUDS].to(device, non_blocking=True)
        near = torch.cdist(points, points).topk(NEIGHBOURS, largest=False).indices
        labels = (points.sum(-1) * 6).long()
        mark(times)
        loss = nn.functional.cross_entropy(model(points, near).flatten(0, 1), labels.flatten())
        mark(times)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 100.0)
        mark(times)
        optimizer.step()
        mark(times)
        if step % 50 == 0:
            parts = [f"{1000 * (b - a):.1f}" for a, b in zip(times[:-1], times[1:], strict=True)]
            print(f"step {step} loss {loss.item():.3f} parts {' '.join(parts)}")
    torch.cuda.synchronize()
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
