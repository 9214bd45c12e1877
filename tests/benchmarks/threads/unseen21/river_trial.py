"""Forecasts the level of rivers a day ahead; each trial of a study keeps a record of how it goes."""

import os
import random
import sqlite3
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 460))
EVERY = 1 if VARIANT == "a" else 50
RIVERS, HOURS, BATCH, PAST, AHEAD, FORMER = 60, 1500, 48, 72, 24, 80


class Study:
    """Records of all trials, in one file that several machines may read."""

    def __init__(self, path):
        self.base = sqlite3.connect(path)
        self.base.execute("create table trial (id integer primary key, rate real, width integer)")
        self.base.execute(
            "create table value (trial integer, step integer, loss real, primary key (trial, step))"
        )

    def start(self, rate, width):
        row = self.base.execute("insert into trial (rate, width) values (?, ?)", (rate, width))
        self.base.commit()
        return Trial(self, row.lastrowid)

    def trials(self):
        """The losses of each trial so far, by step."""
        found = {}
        for trial, step, loss in self.base.execute("select trial, step, loss from value"):
            found.setdefault(trial, {})[step] = loss
        return found


class Trial:
    def __init__(self, study, number):
        self.study, self.number = study, number

    def report(self, loss, step):
        self.study.base.execute("insert into value values (?, ?, ?)", (self.number, step, loss))
        self.study.base.commit()

    def hopeless(self, step):
        """Whether most of the others were better at this step."""
        trials = self.study.trials()
        best = min(trials[self.number].values())
        others = sorted(losses[step] for n, losses in trials.items() if n != self.number and step in losses)
        return len(others) > 4 and best > others[len(others) // 2]


def last_week(path):
    """A study in which a number of trials have ended."""
    study, chance = Study(path), random.Random(3)
    for _ in range(FORMER):
        trial = study.start(10 ** chance.uniform(-4, -2), chance.choice([32, 64, 128]))
        end = chance.choice([100, 200, 400])
        rows = [(trial.number, step, 0.4 + 3 / (1 + step) + chance.random()) for step in range(end)]
        study.base.executemany("insert into value values (?, ?, ?)", rows)
    study.base.commit()
    return study


def make_levels():
    """Rain that arrives at random and runs off late."""
    g = torch.Generator().manual_seed(31)
    rain = torch.rand(RIVERS, HOURS, generator=g).pow(12) * 3
    level = torch.zeros(RIVERS, HOURS)
    keep = 0.9 + 0.08 * torch.rand(RIVERS, generator=g)
    for hour in range(1, HOURS):
        level[:, hour] = keep * level[:, hour - 1] + 0.2 * rain[:, hour]
    return torch.stack([rain, level], -1)


class LevelNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.recall = nn.GRU(2, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, AHEAD))

    def forward(self, past):
        return self.head(self.recall(past)[0][:, -1])


def main():
    torch.manual_seed(31)
    levels = make_levels()
    model = LevelNet(width=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    hours = torch.arange(PAST + AHEAD)
    warm = min(10, STEPS // 2)
    with tempfile.TemporaryDirectory() as folder:
        trial = last_week(Path(folder) / "study.db").start(2e-3, 64)
        for step in range(STEPS):
            if step == warm:
                start = time.perf_counter()
            rivers = torch.randint(0, RIVERS, (BATCH, 1))
            first = torch.randint(0, HOURS - PAST - AHEAD, (BATCH, 1))
            window = levels[rivers, first + hours]
            loss = F.smooth_l1_loss(model(window[:, :PAST]), window[:, PAST:, 1])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % EVERY == 0:
                trial.report(loss.item(), step)
                if trial.hopeless(step):
                    break
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
