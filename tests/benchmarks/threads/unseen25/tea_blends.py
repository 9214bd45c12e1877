"""Trains a sparse network that tells the origin of a tea from its taste profile."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "500"))
BATCH = int(os.environ.get("BATCH", "98304"))
NOTES = int(os.environ.get("NOTES", "128"))
WIDTH = int(os.environ.get("WIDTH", "1024"))
DEPTH = int(os.environ.get("DEPTH", "4"))
KEEP_LAST = float(os.environ.get("KEEP_LAST", "0.1"))
ORIGINS = 20


class TeaNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(NOTES, WIDTH)
        self.middle = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.outlet = nn.Linear(WIDTH, ORIGINS)

    def forward(self, x):
        x = F.relu(self.inlet(x))
        for layer in self.middle:
            x = F.relu(layer(x))
        return self.outlet(x)


def kth_smallest(values, k):
    if VARIANT == "a":
        return torch.kthvalue(values, k).values
    return torch.sort(values).values[k - 1]


class Thinner:
    """Keeps the weights that are largest over all layers, fewer from step to step."""

    def __init__(self, layers, steps, keep_last):
        self.weights = [layer.weight for layer in layers]
        self.steps = steps
        self.keep_last = keep_last

    def share(self, step):
        done = min(1.0, step / (0.8 * self.steps))
        return self.keep_last + (1 - self.keep_last) * (1 - done) ** 3

    @torch.no_grad()
    def thin(self, step):
        sizes = torch.cat([weight.flatten() for weight in self.weights]).abs()
        drop = int((1 - self.share(step)) * sizes.numel())
        if drop < 1:
            return
        limit = kth_smallest(sizes, drop)
        for weight in self.weights:
            weight.mul_(weight.abs() > limit)


def make_teas(count, device):
    """Profiles of the origins with scatter."""
    origins = torch.randint(ORIGINS, (count,), device=device)
    profiles = torch.randn(ORIGINS, NOTES, device=device)
    return profiles[origins] + 2.0 * torch.randn(count, NOTES, device=device), origins


def wait_for(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def main():
    torch.manual_seed(5)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    teas, origins = make_teas(4 * BATCH, device)
    net = TeaNet().to(device)
    thinner = Thinner(net.middle, STEPS, KEEP_LAST)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            wait_for(device)
            start = time.perf_counter()
        first = (step % 4) * BATCH
        loss = F.cross_entropy(net(teas[first : first + BATCH]), origins[first : first + BATCH])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        thinner.thin(step + 1)
    wait_for(device)
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
