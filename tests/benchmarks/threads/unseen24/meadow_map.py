"""Which of ten thousand plants grow at a place in a given week: a net trained on lists from excursions."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 380))
BATCH = int(os.environ.get("BATCH", 2048))
WIDTH = int(os.environ.get("WIDTH", 1536))
PLANTS = int(os.environ.get("PLANTS", 10000))
DEPTH, LISTS = 4, 40000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Excursions(Dataset):
    def __init__(self):
        rng = np.random.default_rng(11)
        self.where = rng.uniform(-1, 1, (LISTS, 3)).astype(np.float32)
        lengths = rng.integers(5, 60, LISTS)
        ends = np.cumsum(lengths)
        plants = rng.integers(0, PLANTS, ends[-1])
        self.seen = [torch.from_numpy(np.unique(part)) for part in np.split(plants, ends[:-1])]

    def __len__(self):
        return LISTS

    def __getitem__(self, item):
        return self.where[item], self.seen[item]


def together(samples):
    where = torch.from_numpy(np.stack([place for place, _ in samples]))
    lengths = torch.tensor([len(seen) for _, seen in samples])
    rows = torch.arange(len(samples)).repeat_interleave(lengths)
    columns = torch.cat([seen for _, seen in samples])
    if VARIANT == "b":
        return where, (rows, columns)
    return where, presence(rows, columns, len(samples))


def presence(rows, columns, count):
    present = torch.zeros(count, PLANTS, device=rows.device)
    present[rows, columns] = 1.0
    return present


def on_device(where, target):
    where = where.to(device)
    if VARIANT == "b":
        rows, columns = (t.to(device) for t in target)
        return where, presence(rows, columns, len(where))
    return where, target.to(device)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class PlaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(8))
        self.first = nn.Linear(48, WIDTH)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])
        self.plants = nn.Linear(WIDTH, PLANTS)

    def forward(self, where):
        angles = (where[:, :, None] * self.waves).flatten(1)
        return self.plants(self.blocks(self.first(torch.cat([angles.sin(), angles.cos()], 1))))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(5)
    model = PlaceNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    loader = DataLoader(Excursions(), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=together)
    warm = min(20, STEPS // 2)
    for step, batch in enumerate(endless(loader)):
        if step == STEPS:
            break
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        where, present = on_device(*batch)
        loss = F.binary_cross_entropy_with_logits(model(where), present)
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
