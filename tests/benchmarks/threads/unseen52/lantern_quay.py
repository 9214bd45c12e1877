"""Trains a residual network on photographs of a thousand classes."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

STORED, CROP, PHOTOS, BATCH, WORKERS = (40, 32, 64, 8, 2) if SMALL else (256, 224, 2000, 64, 8)
CLASSES, BLOCKS, BASE = (10, (1, 1, 1, 1), 8) if SMALL else (1000, (3, 4, 6, 3), 64)
MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


class Photographs(Dataset):
    """Decoded photographs; the crop and the flip depend on the place and the epoch."""

    def __init__(self, seed, augment):
        rng = np.random.default_rng(seed)
        self.images = rng.integers(0, 256, (PHOTOS, STORED, STORED, 3), dtype=np.uint8)
        self.labels = rng.integers(0, CLASSES, PHOTOS)
        self.augment = augment

    def __len__(self):
        return PHOTOS * 50

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        top, left = rng.integers(0, STORED - CROP + 1, 2)
        flip = rng.random() < 0.5
        image = self.images[index % PHOTOS]
        if self.augment:
            image = image[top : top + CROP, left : left + CROP]
            image = image[:, ::-1] if flip else image
        return image, int(self.labels[index % PHOTOS]), (int(top), int(left), int(flip))


def fast_collate(samples):
    """Photographs of a batch as bytes in one tensor."""
    images = torch.empty((len(samples), 3, *samples[0][0].shape[:2]), dtype=torch.uint8)
    for row, (image, _, _) in enumerate(samples):
        images[row] = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
    return images, torch.tensor([s[1] for s in samples]), torch.tensor([s[2] for s in samples])


def crop_and_flip(images, places):
    """Crop and flip of each photograph, on the device for the batch at once."""
    steps = torch.arange(CROP, device=images.device)
    rows = places[:, 0, None] + steps
    columns = places[:, 1, None] + torch.where(places[:, 2, None] == 1, CROP - 1 - steps, steps)
    batch = torch.arange(images.shape[0], device=images.device)[:, None, None, None]
    channel = torch.arange(3, device=images.device)[None, :, None, None]
    return images[batch, channel, rows[:, None, :, None], columns[:, None, None, :]]


class PrefetchLoader:
    """Copies and normalises the next batch on a stream of its own."""

    def __init__(self, loader):
        self.loader = loader
        self.mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
        self.std = torch.tensor(STD, device=device).view(1, 3, 1, 1)
        self.stream = torch.cuda.Stream() if device == "cuda" else None

    def _prepare(self, images, labels, places):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        if not self.loader.dataset.augment:
            images = crop_and_flip(images, places.to(device, non_blocking=True))
        images = images.float().sub_(self.mean).div_(self.std)
        return images.contiguous(memory_format=torch.channels_last), labels

    def __iter__(self):
        ready = None
        for batch in self.loader:
            if self.stream is None:
                yield self._prepare(*batch)
                continue
            with torch.cuda.stream(self.stream):
                following = self._prepare(*batch)
            if ready is not None:
                yield ready
            torch.cuda.current_stream().wait_stream(self.stream)
            for tensor in following:
                tensor.record_stream(torch.cuda.current_stream())
            ready = following
        if ready is not None:
            yield ready


class ResidualUnit(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.short = None
        if stride != 1 or before != 4 * width:
            self.short = nn.Sequential(
                nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        return F.relu(self.norm3(self.conv3(y)) + (x if self.short is None else self.short(x)), inplace=True)


class ResNet(nn.Module):
    """Residual network with four stages."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, BASE, 7, 2, 3, bias=False),
            nn.BatchNorm2d(BASE),
            nn.ReLU(True),
            nn.MaxPool2d(3, 2, 1),
        )
        stages, before = [], BASE
        for stage, count in enumerate(BLOCKS):
            width = BASE * 2**stage
            for place in range(count):
                stages.append(ResidualUnit(before, width, 2 if stage > 0 and place == 0 else 1))
                before = 4 * width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, CLASSES)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))


def endless(loader):
    """One epoch after the other."""
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    dataset = Photographs(1, augment=VARIANT == "a")
    loader = DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        collate_fn=fast_collate,
        pin_memory=device == "cuda",
        drop_last=True,
        persistent_workers=True,
        generator=torch.Generator().manual_seed(5),
    )
    batches = endless(PrefetchLoader(loader))
    model = ResNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(STEPS, 1))
    warm = min(10, STEPS // 2)
    start, last = time.perf_counter(), None
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        images, labels = next(batches)
        with torch.autocast(device, dtype=torch.bfloat16):
            scores = model(images)
        last = F.cross_entropy(scores.float(), labels, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        last.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1} loss {last.item():.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
