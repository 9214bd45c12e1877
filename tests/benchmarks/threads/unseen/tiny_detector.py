"""A small detector of many layers, with a second set of weights that follows the first."""

import copy
import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
WIDTH, DEPTH, BATCH, SIDE = 48, 60, 4, 96


class Conv(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(b)

    def forward(self, x):
        return nn.functional.silu(self.bn(self.conv(x)))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(Conv(3, WIDTH // 2, 2), Conv(WIDTH // 2, WIDTH, 2))
        self.body = nn.ModuleList(Conv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.head = nn.Conv2d(WIDTH, 16, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.body:
            x = x + layer(x)
        return self.head(x)


class ModelEMA:
    def __init__(self, model, decay=0.9999, tau=2000):
        self.ema = copy.deepcopy(model).eval().requires_grad_(False)
        self.updates, self.decay = 0, lambda x: decay * (1 - math.exp(-x / tau))

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = self.decay(self.updates)
        state = model.state_dict()
        if VARIANT == "b":
            pairs = [(v, state[k]) for k, v in self.ema.state_dict().items() if v.dtype.is_floating_point]
            mine, theirs = zip(*pairs, strict=True)
            torch._foreach_lerp_(list(mine), list(theirs), 1 - d)
            return
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= d
                v += (1 - d) * state[k].detach()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Detector().to(device)
    ema = ModelEMA(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.rand(16, BATCH, 3, SIDE, SIDE, device=device)
    truth = torch.rand(16, BATCH, 16, SIDE // 4, SIDE // 4, device=device)
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        loss = nn.functional.smooth_l1_loss(model(images[step % 16]), truth[step % 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
