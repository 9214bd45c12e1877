"""Segmentation of lichens on rock plates: queries attend to the pixels of a frozen stem."""

import functools
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH, SIDE = 8, 192
DIM, QUERIES, KINDS = 128, 8, 5


class PlateGrid(nn.Module):
    """Sines and cosines of the places on the plate."""

    def __init__(self, half, temperature=10000.0, scale=2 * math.pi):
        super().__init__()
        self.half = half
        self.temperature = temperature
        self.scale = scale
        if VARIANT != "a":
            self.places = functools.lru_cache(maxsize=1)(self.places)

    def places(self, shape, dtype):
        seen = torch.ones((shape[0], shape[2], shape[3]), dtype=dtype)
        rows = seen.cumsum(1)
        cols = seen.cumsum(2)
        rows = rows / (rows[:, -1:, :] + 1e-6) * self.scale
        cols = cols / (cols[:, :, -1:] + 1e-6) * self.scale
        rate = torch.arange(self.half, dtype=torch.int64)
        rate = self.temperature ** (2 * torch.div(rate, 2, rounding_mode="floor").to(dtype) / self.half)
        across = cols[:, :, :, None] / rate
        down = rows[:, :, :, None] / rate
        across = torch.stack((across[..., 0::2].sin(), across[..., 1::2].cos()), dim=4).flatten(3)
        down = torch.stack((down[..., 0::2].sin(), down[..., 1::2].cos()), dim=4).flatten(3)
        return torch.cat((down, across), dim=3).permute(0, 3, 1, 2)

    def forward(self, feature):
        return self.places(tuple(feature.shape), feature.dtype)


class QueryLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ask = nn.Linear(DIM, DIM)
        self.answer = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.norm1 = nn.LayerNorm(DIM)
        self.norm2 = nn.LayerNorm(DIM)

    def forward(self, query, keys, values):
        query = self.norm1(query + self.answer(self.ask(query), keys, values, need_weights=False)[0])
        return self.norm2(query + self.mix(query))


class LichenFormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, DIM, 4, stride=4), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(DIM, DIM, 1), nn.ReLU())
        self.grid = PlateGrid(DIM // 2)
        self.queries = nn.Parameter(torch.randn(QUERIES, DIM) * 0.1)
        self.layers = nn.ModuleList(QueryLayer() for _ in range(1))
        self.kind = nn.Linear(DIM, KINDS)

    def forward(self, plates):
        with torch.no_grad():
            fine = self.stem(plates)
        coarse = self.deep(fine)
        pixels = fine + self.grid(fine)
        values = coarse.flatten(2).transpose(1, 2)
        keys = F.avg_pool2d(pixels, 2).flatten(2).transpose(1, 2)
        query = self.queries.expand(plates.shape[0], -1, -1)
        for layer in self.layers:
            query = layer(query, keys, values)
        masks = torch.einsum("bqc,bchw->bqhw", query, pixels) / math.sqrt(DIM)
        return torch.einsum("bqk,bqhw->bkhw", self.kind(query).softmax(-1), masks.sigmoid())


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(2)
    model = LichenFormer()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    warm = min(10, STEPS // 2)
    total, begin = 0.0, time.perf_counter()
    for step in range(STEPS):
        plates = torch.rand(BATCH, 3, SIDE, SIDE, generator=gen)
        truth = (F.avg_pool2d(plates.mean(1, keepdim=True), 4)[:, 0] * 40 % KINDS).long()
        loss = F.cross_entropy(model(plates), truth)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if step + 1 == warm:
            begin = time.perf_counter()
    spent = time.perf_counter() - begin
    print(f"loss {total / STEPS:.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
