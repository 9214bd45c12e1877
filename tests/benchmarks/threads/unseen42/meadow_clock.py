"""Forecast hourly load with an additive model of trend, seasons, lags, events and regressors.

Every sample is a place in the series; its inputs are the values around that place. Each part of the model
reads its own inputs, and the forecast is the sum of the parts.
"""

import os
import time
from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5200))

HOURS = 24 * 365
LAGS = 48
AHEAD = 12
BATCH = 512
PERIODS = OrderedDict(yearly=(24 * 365.25, 6), weekly=(24 * 7.0, 3), daily=(24.0, 6))
COVARIATES = ("temperature", "wind", "price")
EVENTS = ("holiday", "match", "storm")
REGRESSORS = ("planned", "sunshine")
EVAL_EVERY = 100


def make_series(seed):
    """Columns of a year of hours, as tensors."""
    rng = np.random.default_rng(seed)
    hours = np.arange(HOURS)
    columns = {"t": hours / HOURS}
    for name in COVARIATES + REGRESSORS:
        walk = np.cumsum(rng.normal(scale=0.05, size=HOURS))
        columns[name] = np.sin(hours * rng.uniform(0.01, 0.3)) + walk - walk.mean()
    for name in EVENTS:
        columns[name] = (rng.random(HOURS) < 0.02).astype(float)
    load = np.sin(2 * np.pi * hours / 24) + 0.4 * np.sin(2 * np.pi * hours / 168)
    load = load + 0.3 * columns["temperature"]
    load = load + 0.8 * columns["holiday"] + 0.2 * columns["planned"] + rng.normal(scale=0.1, size=HOURS)
    columns["y"] = (load - load.mean()) / load.std()
    return {name: torch.tensor(values, dtype=torch.float32) for name, values in columns.items()}


class TimeDataset(Dataset):
    """Samples of a series: the lags before a place and the hours that follow it."""

    def __init__(self, series):
        self.series = dict(series)
        self.seasons = OrderedDict()
        hours = torch.arange(HOURS, dtype=torch.float32)
        for name, (period, order) in PERIODS.items():
            angles = 2 * np.pi / period * hours[:, None] * torch.arange(1, order + 1)
            self.seasons[name] = torch.cat([angles.sin(), angles.cos()], dim=1)
        self.series["events"] = torch.stack([self.series[name] for name in EVENTS], dim=1)
        self.series["regressors"] = torch.stack([self.series[name] for name in REGRESSORS], dim=1)
        self.places = torch.arange(LAGS, HOURS - AHEAD - 1)
        self.meta = OrderedDict(series="load")
        self.columns, self.table = self.pack()

    def pack(self):
        """All columns side by side, and the places of each part among them."""
        parts = [("t", self.series["t"][:, None]), ("y", self.series["y"][:, None])]
        parts += [(name, self.series[name][:, None]) for name in COVARIATES]
        parts += [("events", self.series["events"]), ("regressors", self.series["regressors"])]
        parts += list(self.seasons.items())
        columns, start = {}, 0
        for name, values in parts:
            columns[name] = slice(start, start + values.shape[1])
            start += values.shape[1]
        return columns, torch.cat([values for _, values in parts], dim=1)

    def __len__(self):
        return len(self.places)

    def tabularize(self, place):
        """The inputs and targets at a place, part by part."""
        ahead = slice(place + 1, place + AHEAD + 1)
        before = slice(place - LAGS + 1, place + 1)
        inputs = OrderedDict(time=self.series["t"][ahead], lags=self.series["y"][before])
        inputs["seasons"] = OrderedDict((name, values[ahead]) for name, values in self.seasons.items())
        inputs["covariates"] = OrderedDict((name, self.series[name][before]) for name in COVARIATES)
        inputs["events"] = self.series["events"][ahead]
        inputs["regressors"] = self.series["regressors"][ahead]
        return inputs, self.series["y"][ahead]

    def __getitem__(self, index):
        place = int(self.places[index])
        if VARIANT == "a":
            inputs, targets = self.tabularize(place)
            return inputs, targets, self.meta
        return self.table[place - LAGS + 1 : place + AHEAD + 1], self.meta


def unpack(rows, columns):
    """The parts of a batch of rows (samples, hours, columns)."""
    before, ahead = rows[:, :LAGS], rows[:, LAGS:]
    inputs = OrderedDict(time=ahead[:, :, columns["t"]].squeeze(2))
    inputs["lags"] = before[:, :, columns["y"]].squeeze(2)
    inputs["seasons"] = OrderedDict((name, ahead[:, :, columns[name]]) for name in PERIODS)
    inputs["covariates"] = OrderedDict((name, before[:, :, columns[name]].squeeze(2)) for name in COVARIATES)
    inputs["events"] = ahead[:, :, columns["events"]]
    inputs["regressors"] = ahead[:, :, columns["regressors"]]
    return inputs, ahead[:, :, columns["y"]].squeeze(2)


class Forecaster(nn.Module):
    """The sum of a broken line, seasons, an autoregressive network, covariates, events and regressors."""

    def __init__(self, breaks=10, width=192):
        super().__init__()
        self.register_buffer("breaks", torch.linspace(0, 0.8, breaks))
        self.slopes = nn.Parameter(torch.zeros(breaks))
        self.bias = nn.Parameter(torch.zeros(1))
        self.seasons = nn.ModuleDict({name: nn.Linear(2 * order, 1) for name, (_, order) in PERIODS.items()})
        self.lags = self.network(width)
        self.covariates = nn.ModuleDict({name: self.network(width) for name in COVARIATES})
        self.events = nn.Linear(len(EVENTS), 1, bias=False)
        self.regressors = nn.Linear(len(REGRESSORS), 1, bias=False)

    @staticmethod
    def network(width):
        return nn.Sequential(
            nn.Linear(LAGS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, AHEAD)
        )

    def trend(self, times):
        return self.bias + (times.unsqueeze(-1) - self.breaks).clamp_min(0) @ self.slopes

    def components(self, inputs):
        parts = OrderedDict(trend=self.trend(inputs["time"]), lags=self.lags(inputs["lags"]))
        for name, values in inputs["seasons"].items():
            parts["season_" + name] = self.seasons[name](values).squeeze(-1)
        for name, values in inputs["covariates"].items():
            parts["covariate_" + name] = self.covariates[name](values)
        parts["events"] = self.events(inputs["events"]).squeeze(-1)
        parts["regressors"] = self.regressors(inputs["regressors"]).squeeze(-1)
        return parts

    def forward(self, inputs):
        return torch.stack(list(self.components(inputs).values())).sum(0)


class Metrics:
    """Running means of the errors since the last report."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.absolute, self.squared, self.count = 0.0, 0.0, 0

    def update(self, forecast, targets):
        error = (forecast - targets).detach()
        self.absolute += error.abs().mean().item()
        self.squared += error.square().mean().item()
        self.count += 1

    def report(self):
        count = max(self.count, 1)
        line = f"MAE {self.absolute / count:.4f} RMSE {(self.squared / count) ** 0.5:.4f}"
        self.reset()
        return line


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    dataset = TimeDataset(make_series(seed=1))
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=STEPS + 1)
    huber = nn.SmoothL1Loss(beta=0.3)
    metrics = Metrics()
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    stream = endless(loader)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        batch = next(stream)
        inputs, targets = batch[:2] if VARIANT == "a" else unpack(batch[0], dataset.columns)
        forecast = model(inputs)
        loss = huber(forecast, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        metrics.update(forecast, targets)
        if step % EVAL_EVERY == EVAL_EVERY - 1:
            print(f"step {step + 1} loss {loss.item():.4f} {metrics.report()}")
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
