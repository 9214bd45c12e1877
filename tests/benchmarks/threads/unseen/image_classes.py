"""A residual network on images, in half precision."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 80))
BATCH, SIDE, CLASSES = 128, 224, 1000


def convolve(a, b, kernel, stride=1):
    return [nn.Conv2d(a, b, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(b)]


class Residual(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *convolve(inputs, width, 1), nn.ReLU(inplace=True),
            *convolve(width, width, 3, stride), nn.ReLU(inplace=True),
            *convolve(width, outputs, 1),
        )  # fmt: skip
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Sequential(*convolve(inputs, outputs, 1, stride))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, depths=(3, 4, 6, 3)):
        super().__init__()
        layers, inputs = [*convolve(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
        for stage, depth in enumerate(depths):
            for number in range(depth):
                width, stride = 64 * 2**stage, 2 if stage and not number else 1
                layers.append(Residual(inputs, width, stride))
                inputs = 4 * width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    model = ResNet().to(device)
    images = torch.randn(4, BATCH, 3, SIDE, SIDE, device=device)
    labels = torch.randint(0, CLASSES, (4, BATCH), device=device)
    if VARIANT == "b":
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(STEPS):
        if step == 15:
            torch.cuda.synchronize()
            start = time.perf_counter()
        x, y = images[step % 4], labels[step % 4]
        if VARIANT == "b":
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 15):.2f} ms per step")


if __name__ == "__main__":
    main()
