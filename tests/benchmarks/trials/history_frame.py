"""Trainer class with callbacks; one keeps the history in a pandas frame and writes it whole each step.

Planted: host-bound (the line is marked). --fixed: rows in a list, written at the end.
"""

import dataclasses
import os
import sys
import tempfile
import time

import pandas as pd
import torch
from torch import nn

TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


@dataclasses.dataclass
class Config:
    width: int = 256
    batch: int = 128
    lr: float = 1e-3
    epochs: int = 6
    out: str = dataclasses.field(default_factory=tempfile.mkdtemp)


class Callback:
    def on_step_end(self, trainer): ...

    def on_train_end(self, trainer): ...


class History(Callback):
    def __init__(self, cfg):
        self.path = os.path.join(cfg.out, "history.csv")
        self.frame = pd.DataFrame(columns=["step", "epoch", "loss", "lr", "norm"])
        self.rows = []

    def on_step_end(self, trainer):
        row = dict(step=trainer.step, epoch=trainer.epoch, loss=float(trainer.loss), lr=1e-3, norm=0.0)
        if FIXED:
            self.rows.append(row)
            return
        self.frame = pd.concat([self.frame, pd.DataFrame([row])], ignore_index=True)
        self.frame.to_csv(self.path, index=False)  # planted

    def on_train_end(self, trainer):
        if FIXED:
            pd.DataFrame(self.rows).to_csv(self.path, index=False)


class Progress(Callback):
    def on_step_end(self, trainer):
        if trainer.step % 50 == 0:
            print(f"step {trainer.step} loss {float(trainer.loss):.3f}")


class Trainer:
    def __init__(self, cfg, model, callbacks):
        self.cfg, self.model, self.callbacks = cfg, model.to(DEV), callbacks
        self.opt = torch.optim.Adam(model.parameters(), cfg.lr)
        self.step = self.epoch = 0
        self.loss = None

    def fire(self, name):
        for cb in self.callbacks:
            getattr(cb, name)(self)

    def training_step(self, x, y):
        self.opt.zero_grad()
        self.loss = nn.functional.mse_loss(self.model(x), y)
        self.loss.backward()
        self.opt.step()

    def fit(self, batches):
        for self.epoch in range(self.cfg.epochs):
            for x, y in batches():
                self.training_step(x, y)
                self.step += 1
                self.fire("on_step_end")
                if self.step == 20:
                    self.begun = time.perf_counter()
        self.fire("on_train_end")
        return (time.perf_counter() - self.begun) * 1000 / (self.step - 20)


def main():
    cfg = Config()
    data = torch.randn(64 * 60, 32, device=DEV)

    def batches():
        for part in data[torch.randperm(len(data), device=DEV)].split(cfg.batch):
            yield part, part.sum(1, keepdim=True)

    model = nn.Sequential(
        nn.Linear(32, cfg.width),
        nn.SiLU(),
        nn.Linear(cfg.width, cfg.width),
        nn.SiLU(),
        nn.Linear(cfg.width, 1),
    )
    ms = Trainer(cfg, model, [History(cfg), Progress()]).fit(batches)
    print(f"step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
