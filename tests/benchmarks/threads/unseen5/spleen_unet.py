"""Spleen segmentation on 96-cubed patches: a residual 3-D U-Net driven by a small engine."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 700))
BATCH = int(os.environ.get("BATCH", 4))
SIDE = int(os.environ.get("SIDE", 96))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Unit(nn.Module):
    def __init__(self, before, after, stride=1):
        super().__init__()
        self.conv = nn.Conv3d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.InstanceNorm3d(after, affine=True)

    def forward(self, x):
        return F.leaky_relu(self.norm(self.conv(x)), 0.01)


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.stem = Unit(1, widths[0])
        pairs = list(zip(widths[:-1], widths[1:], strict=True))
        self.down = nn.ModuleList([nn.Sequential(Unit(a, b, 2), Unit(b, b)) for a, b in pairs])
        self.up = nn.ModuleList([nn.ConvTranspose3d(b, a, 2, 2) for a, b in reversed(pairs)])
        self.fuse = nn.ModuleList([Unit(2 * a, a) for a, _ in reversed(pairs)])
        self.head = nn.Conv3d(widths[0], 2, 1)

    def forward(self, x):
        skips = [self.stem(x)]
        for stage in self.down:
            skips.append(stage(skips[-1]))
        x = skips.pop()
        for up, fuse in zip(self.up, self.fuse, strict=True):
            x = fuse(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


def dice_ce(logits, label):
    probability = logits.softmax(1)[:, 1:]
    overlap = (probability * label).sum((2, 3, 4))
    total = probability.sum((2, 3, 4)) + label.sum((2, 3, 4))
    dice = 1 - (2 * overlap + 1e-5) / (total + 1e-5)
    return dice.mean() + F.cross_entropy(logits, label[:, 0].long())


def decollate(batch):
    """The batch as a list of one dictionary per item."""
    items = [{} for _ in range(BATCH)]
    for key, value in batch.items():
        for item, part in zip(items, torch.unbind(value), strict=True):
            item[key] = part.detach().cpu()
    return items


class Trainer:
    def __init__(self, model, optimizer, handlers=(), per_item=True):
        self.model, self.optimizer = model, optimizer
        self.handlers, self.per_item = handlers, per_item
        self.output = None

    def iteration(self, image, label):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            logits = self.model(image)
        logits = logits.float()
        loss = dice_ce(logits, label)
        loss.backward()
        self.optimizer.step()
        self.output = {"image": image, "label": label, "pred": logits}
        if self.per_item:
            self.output = decollate(self.output)
        for handler in self.handlers:
            handler(self.output)
        return loss


def main():
    torch.manual_seed(0)
    model = UNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    trainer = Trainer(model, optimizer, per_item=VARIANT == "a")
    images = torch.randn(2, BATCH, 1, SIDE, SIDE, SIDE, device=device)
    labels = (F.avg_pool3d(images.flatten(0, 1), 5, 1, 2) > 0.1).float().view_as(images)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = trainer.iteration(images[step % 2], labels[step % 2])
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
