"""Predicts how late buses will be, while a second thread cuts the batches out of the trips."""

import os
import threading
import time
from collections import deque
from queue import Queue

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 170))
TRIPS, STOPS, READINGS, BATCH, ROOM = 4_000, 48, 6, 256, 4


def make_trips():
    """Delays grow in traffic and shrink at long halts; readings show a part of that."""
    rng = np.random.default_rng(55)
    traffic = rng.normal(0, 1, (TRIPS, STOPS)).cumsum(1) * 0.3
    halt = rng.random((TRIPS, STOPS))
    delay = np.zeros((TRIPS, STOPS))
    for stop in range(1, STOPS):
        delay[:, stop] = np.maximum(delay[:, stop - 1] + 0.4 * traffic[:, stop] - halt[:, stop] + 0.4, 0)
    noise = rng.normal(0, 1, (TRIPS, STOPS, READINGS - 3))
    readings = np.concatenate([np.stack([traffic, halt, delay], 2), noise], 2)
    return readings.astype(np.float32)


class Inbox:
    """Holds the few batches that wait to be trained on."""

    def __init__(self):
        self.waiting = deque() if VARIANT == "a" else Queue(ROOM)

    def put(self, batch):
        if VARIANT == "a":
            while len(self.waiting) >= ROOM:
                time.sleep(0)
            self.waiting.append(batch)
        else:
            self.waiting.put(batch)

    def get(self):
        if VARIANT == "a":
            while not self.waiting:
                time.sleep(0)
            return self.waiting.popleft()
        return self.waiting.get()


def feed(trips, inbox):
    rng = np.random.default_rng(56)
    while True:
        rows = rng.integers(0, TRIPS, BATCH)
        upto = int(rng.integers(STOPS // 2, STOPS - 8))
        chosen = trips[rows]
        inbox.put(
            (
                torch.from_numpy(chosen[:, upto - 20 : upto].copy()),
                torch.from_numpy(chosen[:, upto + 7, 2].copy()),
            )
        )


class LatenessNet(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.enter = nn.Linear(READINGS, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU())
            for _ in range(3)
        )
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        x = self.enter(x).transpose(1, 2)
        for block in self.blocks:
            x = x + block(x)
        return self.head(torch.cat([x.mean(2), x[..., -1]], 1))[:, 0]


def main():
    torch.manual_seed(55)
    inbox = Inbox()
    threading.Thread(target=feed, args=(make_trips(), inbox), daemon=True).start()
    model = LatenessNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        readings, late = inbox.get()
        loss = F.smooth_l1_loss(model(readings), late)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
