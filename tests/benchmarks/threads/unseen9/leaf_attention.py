"""Leaves told apart by a network whose layers attend to their 7 x 7 surroundings."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2500))
BATCH = int(os.environ.get("BATCH", 16))
SIDE = int(os.environ.get("SIDE", 128))
WIDTH = int(os.environ.get("WIDTH", 48))
KINDS = int(os.environ.get("KINDS", 100))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class AttentionConv(nn.Module):
    """Instead of a convolution: each pixel weighs the pixels around it, channel by channel."""

    def __init__(self, inputs, outputs, kernel=7, groups=8):
        super().__init__()
        self.kernel, self.groups, self.outputs = kernel, groups, outputs
        self.rel_h = nn.Parameter(torch.randn(outputs // 2, 1, 1, kernel, 1))
        self.rel_w = nn.Parameter(torch.randn(outputs // 2, 1, 1, 1, kernel))
        self.key = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.query = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.value = nn.Conv2d(inputs, outputs, 1, bias=False)

    def around(self, x):
        return x.unfold(2, self.kernel, 1).unfold(3, self.kernel, 1)

    def forward(self, x):
        count, _, height, width = x.shape
        padded = F.pad(x, [self.kernel // 2] * 4)
        query, key, value = self.query(x), self.around(self.key(padded)), self.around(self.value(padded))
        low, high = key.split(self.outputs // 2, 1)
        key = torch.cat([low + self.rel_h, high + self.rel_w], 1)
        shape = (count, self.groups, self.outputs // self.groups, height, width, -1)
        key, value = key.contiguous().view(shape), value.contiguous().view(shape)
        out = query.view(shape) * key
        out = F.softmax(out, -1)
        if VARIANT == "a":
            out = torch.einsum("bnchwk,bnchwk -> bnchw", out, value)
        else:
            out = (out * value).sum(dim=5)
        return out.reshape(count, -1, height, width)


class Narrow(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.squeeze = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.look = nn.Sequential(AttentionConv(width, width), nn.BatchNorm2d(width), nn.ReLU())
        self.widen = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.past = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False))

    def forward(self, x):
        return F.relu(self.past(x) + self.widen(self.pool(self.look(self.squeeze(x)))))


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(2)
        )
        layers, inputs = [], WIDTH
        for k, count in enumerate((2, 2, 3, 2)):
            for n in range(count):
                layers.append(Narrow(inputs, WIDTH << k, 2 if k > 0 and n == 0 else 1))
                inputs = 4 * (WIDTH << k)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, KINDS)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def make_leaves(count):
    kinds = torch.randint(0, KINDS, (count,))
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    angle, radius = torch.atan2(y, x), torch.hypot(x, y)
    lobes = (2 + kinds % 9)[:, None, None]
    edge = 0.5 + 0.02 * (kinds // 9)[:, None, None] * torch.cos(lobes * angle)
    leaf = torch.sigmoid(20 * (edge - radius))
    colour = torch.tensor([0.2, 0.7, 0.2])[:, None, None]
    return (leaf[:, None] * colour + 0.1 * torch.randn(count, 3, SIDE, SIDE)).float(), kinds


def main():
    torch.manual_seed(29)
    images, kinds = (x.to(device) for x in make_leaves(4 * BATCH))
    model = LeafNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, nesterov=True)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        loss = F.cross_entropy(model(images[rows]), kinds[rows], label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
