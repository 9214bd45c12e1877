"""Predicts the daily flow of rivers from a year of weather over their basins."""

import logging
import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1800))
BASINS, YEARS, DAYS, BATCH = 120, 12, 90, 32
FORCINGS = ["rain", "sun", "warmest", "coldest", "vapour"]
ATTRIBUTES = 12
LOG, FINE = logging.getLogger("river_flow"), 5


def trace(label, value):
    """Notes a value for whoever wants to follow a run at level FINE."""
    if VARIANT == "a":
        LOG.log(FINE, f"{label} = {value}")
    else:
        LOG.log(FINE, "%s = %s", label, value)


def make_basins():
    """Weather, the basins' properties and a flow that leaks out of a filling store."""
    rng = np.random.default_rng(31)
    length = 365 * YEARS
    season = np.sin(np.arange(length) * 2 * np.pi / 365)[None, :, None]
    weather = rng.normal(size=(BASINS, length, len(FORCINGS))) + season
    weather[..., 0] = np.maximum(0, weather[..., 0]) ** 2
    attributes = rng.uniform(size=(BASINS, ATTRIBUTES))
    store, flow = np.zeros(BASINS), np.zeros((BASINS, length))
    for day in range(length):
        store += weather[:, day, 0]
        out = store * (0.02 + 0.1 * attributes[:, 0])
        store, flow[:, day] = store - out, out
    return weather.astype(np.float32), attributes.astype(np.float32), flow.astype(np.float32)


class Windows:
    """Cuts windows of DAYS out of the basins and scales them."""

    def __init__(self):
        self.weather, self.attributes, self.flow = make_basins()
        self.mean = self.weather.mean((0, 1))
        self.scale = self.weather.std((0, 1))
        self.typical = self.flow.mean(1)
        self.rng = np.random.default_rng(7)

    def draw(self):
        basins = self.rng.integers(0, BASINS, BATCH)
        ends = self.rng.integers(DAYS, 365 * YEARS, BATCH)
        days = ends[:, None] + np.arange(-DAYS, 0)
        forcing = self.weather[basins[:, None], days]
        trace("raw forcing", forcing)
        forcing = (forcing - self.mean) / self.scale
        trace("scaled forcing", forcing)
        static = np.broadcast_to(self.attributes[basins][:, None], (BATCH, DAYS, ATTRIBUTES))
        inputs = np.concatenate([forcing, static], 2)
        trace("inputs of the model", inputs)
        target = self.flow[basins, ends] / self.typical[basins]
        trace("flow", target)
        return torch.from_numpy(inputs), torch.from_numpy(target)


class FlowModel(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.lstm = nn.LSTM(len(FORCINGS) + ATTRIBUTES, width, batch_first=True)
        self.dropout = nn.Dropout(0.4)
        self.head = nn.Linear(width, 1)
        self.lstm.bias_hh_l0.data[width : 2 * width] = 3

    def forward(self, inputs):
        outputs, (state, cell) = self.lstm(inputs)
        trace("outputs", outputs)
        trace("state", state)
        trace("cell", cell)
        return self.head(self.dropout(outputs[:, -1]))[:, 0]


def main():
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    torch.manual_seed(31)
    windows = Windows()
    model = FlowModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        inputs, target = windows.draw()
        predicted = model(inputs)
        loss = (predicted - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            trace(f"gradient of {name}", parameter.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
