"""Kinds of sea shells on small pictures, by a deep and narrow residual net."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
BATCH = int(os.environ.get("BATCH", 256))
WIDTH = int(os.environ.get("WIDTH", 64))
DEPTH = int(os.environ.get("DEPTH", 40))
SIDE, KINDS = 32, 25
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.narrow = nn.Conv2d(width, width // 2, 1, bias=False)
        self.mix = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False)
        self.wide = nn.Conv2d(width // 2, width, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width // 2), nn.BatchNorm2d(width // 2)
        self.norm3 = nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.norm1(self.narrow(x)))
        y = F.relu(self.norm2(self.mix(y)))
        return F.relu(x + self.norm3(self.wide(y)))


class ShellNet(nn.Module):
    def __init__(self):
        super().__init__()
        blocks, width = [nn.Conv2d(3, WIDTH, 3, padding=1)], WIDTH
        for stage in range(3):
            blocks += [Block(width) for _ in range(DEPTH // 3 + (stage < DEPTH % 3))]
            if stage < 2:
                blocks.append(nn.Conv2d(width, 2 * width, 2, 2))
                width *= 2
        self.blocks = nn.Sequential(*blocks)
        self.leave = nn.Linear(width, KINDS)

    def forward(self, x):
        return self.leave(self.blocks(x).mean((2, 3)))


class Trainer:
    """Steps down, and stops where numbers get out of hand."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9, fused=device.type == "cuda"
        )
        self.guard = VARIANT == "a"

    def inspect(self, loss):
        if not torch.isfinite(loss).all():
            raise ValueError("The loss is not a number.")
        for name, weight in self.model.named_parameters():
            if torch.isnan(weight.grad).any() or torch.isinf(weight.grad).any():
                raise ValueError(f"A gradient of {name} is not a number.")

    def step(self, pictures, kinds):
        loss = F.cross_entropy(self.model(pictures), kinds)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.guard:
            self.inspect(loss)
        self.optimizer.step()
        return loss


def shells(count):
    kinds = torch.randint(0, KINDS, (count,))
    patterns = F.interpolate(torch.randn(KINDS, 3, 6, 6), SIDE)
    return (patterns[kinds] + torch.randn(count, 3, SIDE, SIDE)).to(device), kinds.to(device)


def main():
    torch.manual_seed(59)
    trainer = Trainer(ShellNet().to(device))
    pictures, kinds = shells(16 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 16 * BATCH, (step % 16 + 1) * BATCH)
        loss = trainer.step(pictures[rows], kinds[rows])
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
