"""Finds the parts of a page; pages come in many sizes."""

import os
import random
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 60))
torch.backends.cudnn.benchmark = VARIANT == "a"


class Residual(nn.Module):
    def __init__(self, before, inner, stride=1):
        super().__init__()
        after = 4 * inner
        self.body = nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def body():
    stages = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            stages.append(Residual(before, inner, stride if i == 0 else 1))
            before = 4 * inner
    return nn.Sequential(*stages)


def main():
    torch.manual_seed(0)
    random.seed(0)
    device = torch.device("cuda")
    model = nn.Sequential(body(), nn.Conv2d(2048, 12, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        if step == 5:
            torch.cuda.synchronize()
            start = time.perf_counter()
        height, width = random.randint(400, 600), random.randint(400, 600)
        pages = torch.rand(8, 3, height, width, device=device)
        scores = model(pages)
        truth = torch.randint(0, 12, (8, *scores.shape[2:]), device=device)
        loss = nn.functional.cross_entropy(scores, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
