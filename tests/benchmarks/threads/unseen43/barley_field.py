"""Trains a small transformer to fill gaps in the year of a field as satellites and weather models see it."""

import os
import time
from datetime import datetime, timedelta

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1100))
SMALL = os.environ.get("SMALL") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"

FIELDS = 300 if SMALL else 24000
BATCH = 8 if SMALL else 256
WIDTH = 32 if SMALL else 128
LAYERS = 1 if SMALL else 4
MONTHS = 12
MISSING = 65535
LOG_EVERY = 100

BANDS = ["B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B11", "B12", "VH", "VV"]
BANDS += ["rain", "warmth", "height", "slope"]
COLUMNS = {
    "OPTICAL-B02-ts{}-10m": "B2",
    "OPTICAL-B03-ts{}-10m": "B3",
    "OPTICAL-B04-ts{}-10m": "B4",
    "OPTICAL-B05-ts{}-20m": "B5",
    "OPTICAL-B06-ts{}-20m": "B6",
    "OPTICAL-B07-ts{}-20m": "B7",
    "OPTICAL-B08-ts{}-10m": "B8",
    "OPTICAL-B8A-ts{}-20m": "B8A",
    "OPTICAL-B11-ts{}-20m": "B11",
    "OPTICAL-B12-ts{}-20m": "B12",
    "SAR-VH-ts{}-20m": "VH",
    "SAR-VV-ts{}-20m": "VV",
    "METEO-precipitation_flux-ts{}-100m": "rain",
    "METEO-temperature_mean-ts{}-100m": "warmth",
}
STATIC_COLUMNS = {"DEM-alt-20m": "height", "DEM-slo-20m": "slope"}
GROUPS = [[0, 1, 2], [3, 4, 5], [6], [7], [8, 9], [10, 11], [12], [13], [14, 15]]
GROUP_OF_BAND = {BANDS[band]: group for group, bands in enumerate(GROUPS) for band in bands}
SHIFT = np.array([3000.0] * 10 + [-20.0, -20.0, 0.0, 290.0, 500.0, 5.0])
SCALE = np.array([2000.0] * 10 + [10.0, 10.0, 0.02, 15.0, 400.0, 5.0])


def make_table():
    """One record for each field, one column for each band and month, as the survey exports them."""
    generator = np.random.default_rng(8)
    kinds = [("lat", "f4"), ("lon", "f4"), ("start_date", "U10")]
    kinds += [(name.format(month), "f4") for name in COLUMNS for month in range(MONTHS)]
    kinds += [(name, "f4") for name in STATIC_COLUMNS]
    table = np.zeros(FIELDS, dtype=kinds)
    table["lat"], table["lon"] = generator.uniform(-60, 70, FIELDS), generator.uniform(-180, 180, FIELDS)
    days = [(datetime(2020, 1, 1) + timedelta(days=30 * month)).strftime("%Y-%m-%d") for month in range(12)]
    table["start_date"] = np.array(days)[generator.integers(0, 12, FIELDS)]
    phase = generator.uniform(0, 2 * np.pi, FIELDS)
    for name, band in COLUMNS.items():
        for month in range(MONTHS):
            season = np.sin(phase + 2 * np.pi * month / 12)
            noise = 0.2 * generator.standard_normal(FIELDS)
            if band in ("VH", "VV"):
                values = 10 ** ((-15 + 5 * season + noise + 83) / 20)
            elif band == "rain":
                values = 1000 * (2 + season + noise).clip(0)
            elif band == "warmth":
                values = 100 * (288 + 10 * season + noise)
            else:
                values = 3000 + 1500 * season + 300 * noise
            values[generator.random(FIELDS) < 0.05] = MISSING
            table[name.format(month)] = values
    table["DEM-alt-20m"] = generator.uniform(0, 1500, FIELDS)
    table["DEM-slo-20m"] = generator.uniform(0, 20, FIELDS)
    return table


class FieldDataset(Dataset):
    """Fields with some months of some groups of bands hidden."""

    def __init__(self, table, hidden_share=0.4):
        self.table = table
        self.hidden_share = hidden_share

    def __len__(self):
        return len(self.table)

    @staticmethod
    def row_to_arrays(row):
        if VARIANT != "a":
            row = dict(zip(row.dtype.names, row.tolist()))
        where = np.array([row["lat"], row["lon"]], dtype=np.float32)
        month = datetime.strptime(str(row["start_date"]), "%Y-%m-%d").month - 1
        data = np.zeros((MONTHS, len(BANDS)))
        gaps = np.zeros((MONTHS, len(GROUPS)))
        for name, band in COLUMNS.items():
            values = np.array([float(row[name.format(t)]) for t in range(MONTHS)])
            valid = values != MISSING
            if band in ("VH", "VV"):
                valid = valid & (values > 0)
                values[valid] = 20 * np.log10(values[valid]) - 83
            elif band == "rain":
                values[valid] = values[valid] / (100 * 1000.0)
            elif band == "warmth":
                values[valid] = values[valid] / 100
            group = GROUP_OF_BAND[band]
            gaps[:, group] = np.clip(gaps[:, group] + ~valid, a_min=0, a_max=1)
            data[:, BANDS.index(band)] = values
        for name, band in STATIC_COLUMNS.items():
            data[:, BANDS.index(band)] = row[name]
        return data, gaps.astype(bool), where, month

    @staticmethod
    def normalize(data):
        return np.where(data != MISSING, (data - SHIFT) / SCALE, 0.0)

    def __getitem__(self, index):
        data, gaps, where, month = self.row_to_arrays(self.table[index])
        data = self.normalize(data)
        hidden = np.random.default_rng(index).random(gaps.shape) < self.hidden_share
        spread = np.zeros(data.shape, dtype=bool)
        wanted = np.zeros(data.shape, dtype=bool)
        for group, bands in enumerate(GROUPS):
            spread[:, bands] = (hidden | gaps)[:, group : group + 1]
            wanted[:, bands] = (hidden & ~gaps)[:, group : group + 1]
        seen = np.where(spread, 0.0, data)
        return seen.astype(np.float32), data.astype(np.float32), spread, wanted, where, month


class FieldTransformer(nn.Module):
    """One token for each month and group of bands; gives back all bands of all months."""

    def __init__(self):
        super().__init__()
        self.enter = nn.ModuleList(nn.Linear(2 * len(bands), WIDTH) for bands in GROUPS)
        self.leave = nn.ModuleList(nn.Linear(WIDTH, len(bands)) for bands in GROUPS)
        self.month = nn.Embedding(24, WIDTH)
        self.group = nn.Parameter(0.02 * torch.randn(len(GROUPS), 1, WIDTH))
        self.place = nn.Linear(3, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, seen, hidden, where, month):
        parts = zip(GROUPS, self.enter)
        tokens = [enter(torch.cat([seen[..., g], hidden[..., g].float()], dim=-1)) for g, enter in parts]
        x = torch.stack(tokens, dim=1) + self.group
        x = x + self.month(month[:, None] + torch.arange(MONTHS, device=month.device)).unsqueeze(1)
        lat, lon = torch.deg2rad(where).unbind(dim=1)
        place = torch.stack([lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()], dim=1)
        x = torch.cat([self.place(place).unsqueeze(1), x.flatten(1, 2)], dim=1)
        x = self.layers(x)[:, 1:].unflatten(1, (len(GROUPS), MONTHS))
        return torch.cat([leave(x[:, i]) for i, leave in enumerate(self.leave)], dim=-1)


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    workers = 0 if VARIANT == "a" else 8
    loader = DataLoader(
        FieldDataset(make_table()),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=device == "cuda",
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(6),
    )
    model = FieldTransformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(STEPS, 1))
    batches = endless(loader)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = [part.to(device, non_blocking=True) for part in next(batches)]
        seen, data, hidden, wanted, where, month = batch
        guess = model(seen, hidden, where, month)
        loss = (F.smooth_l1_loss(guess, data, reduction="none") * wanted).sum() / wanted.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        last = loss.detach()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {last.item():.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
