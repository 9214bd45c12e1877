"""Species of moths from photos: a residual net in bfloat16, whose averaged weights are tested at the end."""

import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 380))
BATCH = int(os.environ.get("BATCH", 160))
WIDTH = int(os.environ.get("WIDTH", 64))
SIDE = int(os.environ.get("SIDE", 176))
PERIOD, DECAY, SPECIES = 8, 0.999, 200
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.narrow = nn.Conv2d(before, width, 1, bias=False)
        self.mix = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.wide = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(c) for c in (width, width, 4 * width))
        self.skip = None
        if stride > 1 or before != 4 * width:
            skip = nn.Conv2d(before, 4 * width, 1, stride, bias=False)
            self.skip = nn.Sequential(skip, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.norm1(self.narrow(x)), inplace=True)
        y = F.relu(self.norm2(self.mix(y)), inplace=True)
        y = self.norm3(self.wide(y))
        return F.relu(y + (x if self.skip is None else self.skip(x)), inplace=True)


class MothNet(nn.Module):
    def __init__(self, depths=(3, 4, 6, 3)):
        super().__init__()
        blocks, before = [], WIDTH
        for k, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(Block(before, WIDTH << k, 2 if k and not i else 1))
                before = 4 * (WIDTH << k)
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, SPECIES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@torch.no_grad()
def average(ema, model, step):
    """Every few steps the averaged weights move a little towards the present ones."""
    if VARIANT == "b" or step % PERIOD:
        return
    decay = DECAY**PERIOD
    now = model.state_dict()
    for key, mean in ema.state_dict().items():
        if mean.dtype.is_floating_point:
            mean.mul_(decay).add_(now[key], alpha=1 - decay)
        else:
            mean.copy_(now[key])


def photos(count):
    species = torch.randint(0, SPECIES, (count,))
    tints = torch.randint(0, 128, (SPECIES, 3, 1, 1), dtype=torch.uint8)
    shots = torch.randint(0, 128, (count, 3, SIDE, SIDE), dtype=torch.uint8) + tints[species]
    return shots.to(device), species.to(device)


def main():
    torch.manual_seed(43)
    torch.backends.cudnn.benchmark = True
    model = MothNet().to(device, memory_format=torch.channels_last)
    ema = copy.deepcopy(model).requires_grad_(False)
    fused = device.type == "cuda"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, fused=fused)
    shots, species = photos(8 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        x = shots[rows].to(memory_format=torch.channels_last).float().div_(128).sub_(1)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(x)
        loss = F.cross_entropy(scores.float(), species[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average(ema, model, step)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
