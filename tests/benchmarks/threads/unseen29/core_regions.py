"""Trains a U-Net that marks overlapping regions in slices of drill cores, with targets at several sizes."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 520))
BATCH = int(os.environ.get("BATCH", 16))
SIZE = int(os.environ.get("SIZE", 320))
REGIONS = int(os.environ.get("REGIONS", 24))
WIDTH = int(os.environ.get("WIDTH", 32))
WORKERS = int(os.environ.get("WORKERS", 6))
LABELS = 24
SCALES = (0.5, 0.25, 0.125)


def resize_map(seg, shape):
    """The nearest value for each place of a map with another shape."""
    rows, cols = ((np.arange(n) + 0.5) * m / n - 0.5 for n, m in zip(shape, seg.shape))
    yy, xx = np.meshgrid(np.round(rows), np.round(cols), indexing="ij")
    yy = np.clip(yy, 0, seg.shape[0] - 1).astype(np.int64)
    xx = np.clip(xx, 0, seg.shape[1] - 1).astype(np.int64)
    return seg.astype(np.float64)[yy, xx].astype(seg.dtype)


class RegionPyramid:
    """Gives the regions at each size that the network predicts."""

    def each_region(self, regions, shapes):
        return [np.stack([resize_map(region, shape) for region in regions]) for shape in shapes]

    def all_regions(self, regions, shapes):
        packed = np.zeros(regions.shape[1:], dtype=np.uint32)
        for c in range(len(regions)):
            packed |= np.left_shift(regions[c], c, dtype=np.uint32)
        out = []
        for shape in shapes:
            small = resize_map(packed, shape)
            out.append(np.stack([(small >> c) & 1 for c in range(len(regions))]).astype(regions.dtype))
        return out

    def __call__(self, regions):
        shapes = [tuple(int(round(s * scale)) for s in regions.shape[1:]) for scale in SCALES]
        reduce = self.each_region if VARIANT == "a" else self.all_regions
        return [regions] + reduce(regions, shapes)


class CoreSlices(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(5)
        self.count = count
        coarse = rng.integers(0, LABELS, (24, SIZE // 16, SIZE // 16))
        self.labels = coarse.repeat(16, axis=1).repeat(16, axis=2)
        self.members = (rng.random((REGIONS, LABELS)) < 0.3).astype(np.uint8)
        self.pyramid = RegionPyramid()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        labels = self.labels[index % len(self.labels)]
        labels = labels[:, :: rng.choice([-1, 1])]
        image = labels.astype(np.float32) / LABELS + 0.3 * rng.standard_normal(labels.shape, dtype=np.float32)
        regions = self.members.take(np.ascontiguousarray(labels), axis=1)
        return torch.from_numpy(image[None]), [torch.from_numpy(t) for t in self.pyramid(regions)]


def pair(cin, cout):
    one = [nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
    two = [nn.Conv2d(cout, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
    return nn.Sequential(*one, *two)


class CoreNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDTH * 2**i for i in range(len(SCALES) + 2)]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([1] + widths, widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.join = nn.ModuleList(pair(2 * a, a) for a in widths[:-1])
        self.heads = nn.ModuleList(nn.Conv2d(a, REGIONS, 1) for a in widths[:-1])

    def forward(self, x):
        kept, out = [self.down[0](x)], []
        for block in self.down[1:]:
            kept.append(block(F.max_pool2d(kept[-1], 2)))
        x = kept[-1]
        for i in reversed(range(len(self.up))):
            x = self.join[i](torch.cat([self.up[i](x), kept[i]], dim=1))
            out.append(self.heads[i](x))
        return out[::-1]


def main():
    torch.manual_seed(5)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    cuda = device.type == "cuda"
    model = CoreNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cuda)
    loader = DataLoader(CoreSlices(STEPS * BATCH), batch_size=BATCH, num_workers=WORKERS, pin_memory=cuda)
    sync = torch.cuda.synchronize if cuda else time.perf_counter
    warm = min(10, STEPS // 2)
    for step, (image, targets) in enumerate(loader):
        if step == warm:
            sync()
            start = time.perf_counter()
        image = image.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        targets = [t.to(device, non_blocking=True) for t in targets]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            guesses = model(image)
        loss = sum(F.binary_cross_entropy_with_logits(g.float(), t.float()) for g, t in zip(guesses, targets))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
