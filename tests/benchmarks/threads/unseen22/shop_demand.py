"""Tomorrow's sales of many shops, from last week's sales and from the weather."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 350))
BATCH = int(os.environ.get("BATCH", 256))
WIDTH = int(os.environ.get("WIDTH", 384))
DEPTH = int(os.environ.get("DEPTH", 6))
WORKERS = int(os.environ.get("WORKERS", 8))
RECORD = int(os.environ.get("RECORD", 60000))
SHOPS, OPEN, PAST, NEXT, SENSORS = 200, 6000, 168, 24, 6
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Series:
    def __init__(self, first, values):
        self.hours, self.values = first + np.arange(len(values)).astype("timedelta64[h]"), values


class Demand(Dataset):
    def __init__(self, sales, weather):
        self.sales, self.weather = sales, weather
        self.kept = {} if VARIANT == "b" else None

    def __len__(self):
        return SHOPS * (OPEN - PAST - NEXT)

    def rows_of(self, shop, at, length):
        if self.kept is not None:
            if shop not in self.kept:
                self.kept[shop] = self.find(self.sales[shop].hours[:1])[0]
            return self.kept[shop] + at + np.arange(length)
        return self.find(self.sales[shop].hours[at : at + length])

    def find(self, hours):
        return np.flatnonzero(np.isin(self.weather.hours, hours))

    def __getitem__(self, k):
        shop, at = divmod(k, OPEN - PAST - NEXT)
        sales = self.sales[shop].values[at : at + PAST + NEXT]
        weather = self.weather.values[self.rows_of(shop, at, PAST + NEXT)]
        return sales[:PAST], weather, sales[PAST:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class DemandModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(1 + SENSORS, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(PAST + NEXT, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, sales, weather):
        x = self.start(torch.cat([F.pad(sales, (0, NEXT))[..., None], weather], -1)) + self.place
        return self.head(self.blocks(x)[:, PAST:])[..., 0]


def records():
    rng = np.random.default_rng(19)
    start = np.datetime64("2018-01-01T00", "h")
    day = np.sin(2 * np.pi * np.arange(RECORD) / 24)[:, None]
    weather = (day + 0.3 * rng.standard_normal((RECORD, SENSORS))).astype(np.float32)
    sales = []
    for late in rng.integers(0, RECORD - OPEN, SHOPS):
        values = weather[late : late + OPEN] @ rng.standard_normal(SENSORS).astype(np.float32)
        sales.append(Series(start + np.timedelta64(int(late), "h"), values))
    return sales, Series(start, weather)


def main():
    torch.manual_seed(37)
    dataset = Demand(*records())
    sampler = RandomSampler(dataset, replacement=True, num_samples=STEPS * BATCH)
    loader = DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=WORKERS, pin_memory=device.type == "cuda"
    )
    model = DemandModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    warm = min(30, STEPS // 2)
    for step, batch in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        past, weather, ahead = (x.to(device, non_blocking=True) for x in batch)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            predicted = model(past, weather)
        loss = F.l1_loss(predicted.float(), ahead)
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
