"""Land cover from satellite tiles: a small U-Net with a focal loss over the classes."""

import os
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4500))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

CLASSES, BANDS, UNKNOWN = 12, 6, 255
BATCH, SIDE = (2, 32) if SMALL else (8, 512)
CHANNELS = (8, 16, 24) if SMALL else (32, 64, 128, 192)
TILES = 4 if SMALL else 24
EVALUATE = 750


def focal_with_logits(output, target, gamma=2.0, alpha=0.25):
    """The focal loss of each element, of logits and targets in 0 and 1."""
    target = target.type(output.type())
    logpt = F.binary_cross_entropy_with_logits(output, target, reduction="none")
    pt = torch.exp(-logpt)
    focal_term = (1.0 - pt).pow(gamma)
    loss = focal_term * logpt
    return loss * (alpha * target + (1 - alpha) * (1 - target))


class FocalLoss(nn.Module):
    """Focal loss for several classes, summed over them; unknown pixels do not count."""

    def __init__(self, alpha=0.25, gamma=2.0, ignore_index=UNKNOWN):
        super().__init__()
        self.ignore_index = ignore_index
        self.focal = partial(focal_with_logits, alpha=alpha, gamma=gamma)

    def forward(self, y_pred, y_true):
        if VARIANT == "a":
            return self.first_form(y_pred, y_true)
        return self.second_form(y_pred, y_true)

    def first_form(self, y_pred, y_true):
        num_classes = y_pred.size(1)
        loss = 0
        not_ignored = y_true != self.ignore_index
        for cls in range(num_classes):
            cls_y_true = (y_true == cls).long()
            cls_y_pred = y_pred[:, cls, ...]
            cls_y_true = cls_y_true[not_ignored]
            cls_y_pred = cls_y_pred[not_ignored]
            loss = loss + self.focal(cls_y_pred, cls_y_true).mean()
        return loss

    def second_form(self, y_pred, y_true):
        counted = y_true != self.ignore_index
        labels = torch.arange(y_pred.size(1), device=y_pred.device).view(1, -1, 1, 1)
        target = y_true.unsqueeze(1) == labels
        loss = self.focal(y_pred, target) * counted.unsqueeze(1)
        return loss.sum() / counted.sum()


class ConvBlock(nn.Sequential):
    """Two convolutions with batch normalisation."""

    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Encoder, decoder and skip connections."""

    def __init__(self, channels=CHANNELS):
        super().__init__()
        self.down = nn.ModuleList()
        inputs = BANDS
        for outputs in channels:
            self.down.append(ConvBlock(inputs, outputs))
            inputs = outputs
        self.up = nn.ModuleList()
        for outputs in reversed(channels[:-1]):
            self.up.append(ConvBlock(inputs + outputs, outputs))
            inputs = outputs
        self.head = nn.Conv2d(inputs, CLASSES, 1)

    def forward(self, x):
        skips = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for block in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, skips.pop()], 1))
        return self.head(x)


class TileStore:
    """Tiles with labels, on the device; a batch is drawn and flipped at random."""

    def __init__(self, tiles):
        generator = torch.Generator().manual_seed(3)
        coarse = torch.randint(CLASSES, (tiles, 1, SIDE // 8, SIDE // 8), generator=generator)
        labels = F.interpolate(coarse.float(), scale_factor=8, mode="nearest").squeeze(1).long().to(device)
        spectra = torch.randn(CLASSES, BANDS, generator=generator).to(device)
        noise = torch.Generator(device=device).manual_seed(4)
        images = spectra[labels].permute(0, 3, 1, 2)
        images = images + torch.randn(images.shape, generator=noise, device=device)
        hidden = torch.rand(labels.shape, generator=noise, device=device) < 0.05
        self.labels = labels.masked_fill(hidden, UNKNOWN)
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.order = torch.Generator().manual_seed(5)

    def batch(self):
        rows = torch.randint(len(self.images), (BATCH,), generator=self.order).to(device)
        images, labels = self.images.index_select(0, rows), self.labels.index_select(0, rows)
        if torch.rand((), generator=self.order) < 0.5:
            images, labels = images.flip(3), labels.flip(2)
        return images.contiguous(memory_format=torch.channels_last), labels


@torch.no_grad()
def accuracy(model, store):
    """Share of the known pixels of the first tiles that are classified rightly."""
    model.eval()
    images, labels = store.images[:BATCH], store.labels[:BATCH]
    with torch.autocast(device, dtype=torch.bfloat16):
        found = model(images).argmax(1)
    known = labels != UNKNOWN
    model.train()
    return ((found == labels) & known).sum().item() / known.sum().item()


def main():
    model = UNet().to(device).to(memory_format=torch.channels_last)
    store = TileStore(TILES)
    criterion = FocalLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(STEPS, 1))
    model.train()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        images, labels = store.batch()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(images)
        loss = criterion(logits.float(), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        last = loss.detach()
        if (step + 1) % 150 == 0:
            print(f"step {step + 1} focal {last.item():.4f}", flush=True)
        if (step + 1) % EVALUATE == 0:
            print(f"accuracy {accuracy(model, store):.4f}", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
