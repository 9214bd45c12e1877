"""Trains a recurrent network that predicts tram delays from a stream of logged trips."""

from __future__ import annotations

import copy
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1600"))
BATCH = int(os.environ.get("BATCH", "64"))
LOGS = int(os.environ.get("LOGS", "40"))
TRIPS = int(os.environ.get("TRIPS", "500"))
STOPS = int(os.environ.get("STOPS", "24"))
SENSORS = int(os.environ.get("SENSORS", "5"))
HIDDEN = int(os.environ.get("HIDDEN", "48"))


class TripLog:
    """One day's log: the trips of a line, with readings at each stop and the delay at the end."""

    def __init__(self, number):
        rng = np.random.default_rng(100 + number)
        self.readings = rng.standard_normal((TRIPS, STOPS, SENSORS)).astype(np.float32)
        lag = self.readings[:, :, 0].cumsum(1)[:, -1] / STOPS**0.5
        self.delay = (lag + 0.1 * rng.standard_normal(TRIPS)).astype(np.float32)


class TripStream(IterableDataset):
    """Trips of all logs in turn; can be stopped after any trip and taken up there again."""

    def __init__(self, logs):
        self.logs = logs
        self.state = {
            "turn": 0,
            "logs": [{"number": k, "next": 0, "round": 0} for k in range(len(logs))],
        }
        self.resume_point = None

    def state_dict(self):
        if VARIANT == "b":
            places = [dict(place) for place in self.state["logs"]]
            return {"turn": self.state["turn"], "logs": places}
        return copy.deepcopy(self.state)

    def load_state_dict(self, state):
        self.state = copy.deepcopy(state)

    def take(self):
        place = self.state["logs"][self.state["turn"]]
        log = self.logs[place["number"]]
        trip = place["next"]
        place["next"] += 1
        if place["next"] == len(log.delay):
            place["next"] = 0
            place["round"] += 1
        self.state["turn"] = (self.state["turn"] + 1) % len(self.logs)
        return log.readings[trip], log.delay[trip]

    def __iter__(self):
        while True:
            trip = self.take()
            self.resume_point = self.state_dict()
            yield trip


def collate(trips):
    readings = np.stack([readings for readings, _ in trips])
    return torch.from_numpy(readings), torch.from_numpy(np.array([delay for _, delay in trips]))


class DelayNet(nn.Module):
    def __init__(self, sensors, hidden):
        super().__init__()
        self.rnn = nn.GRU(sensors, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, readings):
        _, last = self.rnn(readings)
        return self.head(last[-1]).squeeze(-1)


def main():
    torch.manual_seed(0)
    stream = TripStream([TripLog(k) for k in range(LOGS)])
    batches = iter(DataLoader(stream, batch_size=BATCH, collate_fn=collate))
    model = DelayNet(SENSORS, HIDDEN)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    loss = None
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        readings, delay = next(batches)
        loss = F.mse_loss(model(readings), delay)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"next log {stream.resume_point['turn']}")
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
