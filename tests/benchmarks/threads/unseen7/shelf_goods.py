"""Goods on shelves sorted by a small residual network, on the CPU."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
BATCH = int(os.environ.get("BATCH", 32))
SIDE = int(os.environ.get("SIDE", 48))
WIDTH = int(os.environ.get("WIDTH", 32))
CLASSES = 20


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x), inplace=True)


class ShelfNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDTH, WIDTH, 2 * WIDTH, 4 * WIDTH]
        self.stem = nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.blocks = nn.Sequential(
            *[Residual(i, o, 1 if i == o else 2) for i, o in zip(widths, widths[1:])],
            Residual(4 * WIDTH, 4 * WIDTH, 1),
        )
        self.classify = nn.Linear(4 * WIDTH, CLASSES)

    def forward(self, images):
        x = self.blocks(F.relu(self.stem(images)))
        return self.classify(x.mean((2, 3)))


def make_goods(count):
    labels = torch.randint(0, CLASSES, (count,))
    looks = torch.rand(CLASSES, 3, 1, 1)
    images = looks[labels] + 0.3 * torch.randn(count, 3, SIDE, SIDE)
    return TensorDataset(images, labels)


def batches(loader):
    while True:
        yield from loader


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    def optimizer_zero_grad(self):
        self.optimizer.zero_grad(set_to_none=VARIANT == "b")

    def training_step(self, images, labels):
        loss = F.cross_entropy(self.model(images), labels)
        self.optimizer_zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main():
    torch.manual_seed(101)
    trainer = Trainer(ShelfNet())
    loader = DataLoader(make_goods(16 * BATCH), BATCH, shuffle=True, drop_last=True)
    feed = batches(loader)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        images, labels = next(feed)
        loss = trainer.training_step(images, labels)
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
