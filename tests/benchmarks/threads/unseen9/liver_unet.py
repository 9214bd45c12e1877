"""Livers and tumours in CT: a residual 3D U-Net on large patches."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 900))
BATCH = int(os.environ.get("BATCH", 2))
PATCH = int(os.environ.get("PATCH", 128))
WIDTH = int(os.environ.get("WIDTH", 32))
CLASSES = int(os.environ.get("CLASSES", 3))
device = torch.device(os.environ.get("DEVICE", "cuda"))


def conv(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride, 1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01)
    )


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.first = conv(inputs, outputs, stride)
        self.second = nn.Conv3d(outputs, outputs, 3, 1, 1)
        self.norm = nn.InstanceNorm3d(outputs, affine=True)
        self.past = nn.Identity()
        if inputs != outputs or stride > 1:
            self.past = nn.Sequential(
                nn.AvgPool3d(stride) if stride > 1 else nn.Identity(),
                nn.Conv3d(inputs, outputs, 1),
                nn.InstanceNorm3d(outputs, affine=True),
            )

    def forward(self, x):
        return F.leaky_relu(self.norm(self.second(self.first(x))) + self.past(x), 0.01)


class LiverNet(nn.Module):
    def __init__(self, depth=5):
        super().__init__()
        widths = [min(WIDTH << k, 320) for k in range(depth)]
        self.stem = conv(1, WIDTH)
        self.down, self.up, self.join, self.heads = (nn.ModuleList() for _ in range(4))
        for k, width in enumerate(widths):
            inputs = widths[max(k - 1, 0)]
            count = (1, 2, 2, 3, 3)[k]
            first = Residual(inputs, width, 2 if k else 1)
            self.down.append(nn.Sequential(first, *[Residual(width, width) for _ in range(count - 1)]))
        for k in reversed(range(depth - 1)):
            self.up.append(nn.ConvTranspose3d(widths[k + 1], widths[k], 2, 2))
            self.join.append(conv(2 * widths[k], widths[k]))
            self.heads.append(nn.Conv3d(widths[k], CLASSES, 1))

    def forward(self, x):
        x, kept, scores = self.stem(x), [], []
        for down in self.down:
            x = down(x)
            kept.append(x)
        kept.pop()
        for up, join, head in zip(self.up, self.join, self.heads, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
            scores.append(head(x))
        return scores[::-1]


def dice(scores, wanted):
    chance = scores.softmax(1)[:, 1:]
    target = F.one_hot(wanted, CLASSES).movedim(-1, 1)[:, 1:].to(chance.dtype)
    both = (chance * target).sum((0, 2, 3, 4))
    return 1 - ((2 * both + 1e-5) / (chance.sum((0, 2, 3, 4)) + target.sum((0, 2, 3, 4)) + 1e-5)).mean()


def deep_loss(scores, wanted):
    total = 0.0
    for k, score in enumerate(scores[:3]):
        step = 2**k
        label = wanted[:, ::step, ::step, ::step]
        total = total + (dice(score.float(), label) + F.cross_entropy(score.float(), label)) / step
    return total


def make_volumes(count):
    rough = torch.randn(count, 1, *[PATCH // 8] * 3)
    smooth = F.interpolate(rough, size=(PATCH,) * 3, mode="trilinear")
    wanted = (smooth[:, 0] > 0.5).long() + (smooth[:, 0] > 1.0).long()
    return smooth + 0.3 * torch.randn_like(smooth), wanted.clamp(max=CLASSES - 1)


def main():
    torch.manual_seed(41)
    torch.backends.cudnn.benchmark = True
    layout = torch.contiguous_format if VARIANT == "a" else torch.channels_last_3d
    model = LiverNet().to(device, memory_format=layout)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-2, momentum=0.99, weight_decay=3e-5, nesterov=True, fused=True
    )
    volumes, wanted = (x.to(device) for x in make_volumes(4 * BATCH))
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        x = volumes[rows].to(memory_format=layout)
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(x)
        loss = deep_loss(scores, wanted[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 12)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
