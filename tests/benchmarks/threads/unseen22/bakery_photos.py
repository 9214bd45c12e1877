"""Kinds of bread and cake, told from photos."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 350))
BATCH = int(os.environ.get("BATCH", 384))
WIDTH = int(os.environ.get("WIDTH", 64))
SIDE, KINDS = 96, 50
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.skip = nn.Conv2d(before, after, 1, stride) if before != after else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class BreadNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, WIDTH, 3, 2, 1)]
        for before, after, stride in ((1, 1, 1), (1, 2, 2), (2, 4, 2)):
            layers.append(Residual(before * WIDTH, after * WIDTH, stride))
            layers += [Residual(after * WIDTH, after * WIDTH, 1) for _ in range(2)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4 * WIDTH, KINDS)

    def forward(self, x):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            return self.head(self.body(x)).float()


class Accuracy:
    def __init__(self):
        self.right = torch.zeros((), device=device)
        self.seen = 0

    def update(self, outputs, targets):
        self.right += (outputs.argmax(1) == targets).sum()
        self.seen += len(targets)

    def compute(self):
        return self.right.item() / max(self.seen, 1)


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.accuracy = Accuracy()

    def validate(self, photos, kinds):
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(photos)
        self.model.train()
        return outputs, kinds

    def step(self, photos, kinds):
        if VARIANT == "a":
            outputs, targets = self.validate(photos, kinds)
            self.accuracy.update(outputs, targets)
        outputs = self.model(photos)
        loss = F.cross_entropy(outputs, kinds, label_smoothing=0.1)
        if VARIANT == "b":
            self.accuracy.update(outputs.detach(), kinds)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def photos_of_bread(count):
    kinds = torch.randint(0, KINDS, (count,))
    looks = torch.randn(KINDS, 3, 12, 12)
    photos = F.interpolate(looks[kinds], size=(SIDE, SIDE)) + 0.7 * torch.randn(count, 3, SIDE, SIDE)
    return photos.to(device, memory_format=torch.channels_last), kinds.to(device)


def main():
    torch.manual_seed(43)
    model = BreadNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=device.type == "cuda")
    trainer = Trainer(model, optimizer)
    photos, kinds = photos_of_bread(6 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 6 * BATCH, (step % 6 + 1) * BATCH)
        loss = trainer.step(photos[rows], kinds[rows])
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, accuracy {trainer.accuracy.compute():.3f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
