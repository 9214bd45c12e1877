"""Forecasts the power of wind turbines from lagged values and features of the calendar."""

import os
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
SERIES, HOURS, CONTEXT, HORIZON, BATCH = 240, 2200, 96, 24, 32
LAGS = (1, 2, 3, 24, 48, 168)


class AddTimeFeatures:
    def __call__(self, entry):
        index = pd.date_range(entry["start"], periods=len(entry["target"]), freq="h")
        features = [index.hour / 23, index.dayofweek / 6, (index.day - 1) / 30, (index.dayofyear - 1) / 365]
        entry["time_feat"] = np.stack([np.asarray(each, np.float32) - 0.5 for each in features])
        return entry


class AddObserved:
    def __call__(self, entry):
        entry["observed"] = ~np.isnan(entry["target"])
        entry["target"] = np.nan_to_num(entry["target"])
        return entry


class AddLags:
    def __call__(self, entry):
        age = np.log10(2 + np.arange(len(entry["target"]), dtype=np.float32))
        lags = [np.roll(entry["target"], lag) for lag in LAGS]
        entry["features"] = np.stack([age, *lags, *entry["time_feat"]])
        return entry


class Chain:
    def __init__(self, *steps):
        self.steps = steps

    def apply(self, data):
        for entry in data:
            entry = dict(entry)
            for step in self.steps:
                entry = step(entry)
            yield entry


class Windows(IterableDataset):
    """One window of each series, round and round."""

    def __init__(self, data, chain, ready=False):
        self.data, self.chain, self.ready = data, chain, ready
        self.rng = np.random.default_rng(1)

    def __iter__(self):
        data = list(self.chain.apply(self.data)) if self.ready else None
        while True:
            for entry in data if data is not None else self.chain.apply(self.data):
                t = self.rng.integers(200, HOURS - CONTEXT - HORIZON)
                past, future = slice(t, t + CONTEXT), slice(t + CONTEXT, t + CONTEXT + HORIZON)
                yield entry["features"][:, past], entry["target"][future], entry["observed"][future]


class Forecaster(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Linear(1 + len(LAGS) + 4, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 3 * HORIZON)

    def forward(self, features):
        return self.head(self.body(self.embed(features.transpose(1, 2)))[:, -1]).unflatten(1, (HORIZON, 3))


def student_t(parameters, truth, observed):
    df = 2 + nn.functional.softplus(parameters[..., 0])
    scale = 0.05 + nn.functional.softplus(parameters[..., 1])
    density = torch.distributions.StudentT(df, parameters[..., 2], scale).log_prob(truth)
    return -(density * observed).sum() / observed.sum()


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = []
    for _ in range(SERIES):
        power = np.cumsum(rng.standard_normal(HOURS)).astype(np.float32)
        power = power / np.abs(power).max()
        power[rng.random(HOURS) < 0.02] = np.nan
        data.append({"start": pd.Timestamp("2021-01-01"), "target": power})
    chain = Chain(AddObserved(), AddTimeFeatures(), AddLags())
    loader = iter(DataLoader(Windows(data, chain, ready=VARIANT == "b"), batch_size=BATCH))
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        features, truth, observed = next(loader)
        loss = student_t(model(features), truth, observed)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
