"""Trains a small classifier of customer records with a net wrapper, callbacks and a history.

The wrapper is in the manner of scikit-learn: it goes on with a run that was stored before, records
every batch in its history, and its callbacks read the history at the end of each epoch.
"""

import json
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5600))
RECORDS = 4096
COLUMNS = 48
CLASSES = 6
BATCH = 1024
STORED_EPOCHS = 2400


class _none:
    """Placeholder for a value that is not there, since None is a value."""


def _not_none(items):
    if not isinstance(items, (tuple, list)):
        items = (items,)
    return all(item is not _none for item in items)


def _filter_none(items):
    type_ = list if isinstance(items, list) else tuple
    return type_(filter(_not_none, items))


def _getitem(item, key):
    if not isinstance(key, (tuple, list)):
        return item.get(key, _none)
    type_ = list if isinstance(item, list) else tuple
    return type_(item.get(part, _none) for part in key)


def _column(rows, key):
    found = []
    for row in rows:
        try:
            found.append(row[key])
        except KeyError:
            pass
    return found


def _columns(rows, keys):
    found = []
    for row in rows:
        try:
            found.append(tuple([row[key] for key in keys]))
        except KeyError:
            pass
    return found


class History(list):
    """A list of epochs, each a dict with a list of batches; read by up to four indices."""

    def new_epoch(self):
        self.append({"batches": []})

    def new_batch(self):
        list.__getitem__(self, -1)["batches"].append({})

    def record(self, name, value):
        list.__getitem__(self, -1)[name] = value

    def record_batch(self, name, value):
        list.__getitem__(self, -1)["batches"][-1][name] = value

    def __getitem__(self, index):
        if isinstance(index, (int, slice)):
            return list.__getitem__(self, index)
        epoch, name, batch, key = tuple(index) + (None,) * (4 - len(index))
        items = list(self)
        if batch is not None:
            items = [row[name][batch] for row in items]
        if key is not None:
            if VARIANT == "a":
                items = [
                    _filter_none([_getitem(row, key) for row in rows])
                    if isinstance(rows, (list, tuple))
                    else _getitem(rows, key)
                    for rows in items
                ]
                items = [rows for rows in items if rows not in (_none, [], ())]
            else:
                take = _columns if isinstance(key, (tuple, list)) else _column
                items = [take(rows, key) for rows in items] if isinstance(batch, slice) else take(items, key)
        elif batch is None:
            items = [row for row in (_getitem(row, name) for row in items) if row is not _none]
        if not items:
            raise KeyError(f"Key {key or name!r} was not found in history.")
        return items[epoch]


class Score:
    """Takes the weighted mean of what the batches of this epoch recorded."""

    def __init__(self, name, size):
        self.name = name
        self.size = size

    def on_epoch_end(self, net):
        values = net.history[-1, "batches", :, self.name]
        sizes = net.history[-1, "batches", :, self.size]
        net.history.record(self.name, float(np.average(values, weights=sizes)))


class Best:
    """Marks the epochs in which a score is the best so far."""

    def __init__(self, name):
        self.name = name
        self.best = float("inf")

    def on_epoch_end(self, net):
        value = net.history[-1][self.name]
        net.history.record(self.name + "_best", value < self.best)
        self.best = min(self.best, value)


class Net:
    """The module, its optimizer and its callbacks."""

    def __init__(self, module, callbacks, history):
        self.module = module
        self.callbacks = callbacks
        self.history = history
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def train_step(self, features, labels):
        self.module.train()
        self.optimizer.zero_grad()
        loss = self.criterion(self.module(features), labels)
        loss.backward()
        self.optimizer.step()
        self.history.new_batch()
        self.history.record_batch("train_loss", loss.item())
        self.history.record_batch("train_size", len(labels))
        return loss

    @torch.no_grad()
    def valid_step(self, features, labels):
        self.module.eval()
        loss = self.criterion(self.module(features), labels)
        self.history.new_batch()
        self.history.record_batch("valid_loss", loss.item())
        self.history.record_batch("valid_size", len(labels))

    def end_epoch(self):
        for callback in self.callbacks:
            callback.on_epoch_end(self)


def stored_run(path):
    """Writes the history of an earlier run, as a net leaves it behind."""
    epochs = []
    for number in range(STORED_EPOCHS):
        rows = [{"train_loss": 1.9 - 1e-3 * number, "train_size": BATCH} for _ in range(RECORDS // BATCH)]
        rows.append({"valid_loss": 1.9 - 1e-3 * number, "valid_size": 256})
        epochs.append({"batches": rows, "train_loss": 1.9 - 1e-3 * number, "valid_loss": 1.9 - 1e-3 * number})
    with open(path, "w") as file:
        json.dump(epochs, file)


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    table = torch.from_numpy(rng.standard_normal((RECORDS + 256, COLUMNS), dtype=np.float32))
    labels = (table @ torch.randn(COLUMNS, CLASSES) + 0.5 * torch.randn(len(table), CLASSES)).argmax(1)
    module = nn.Sequential(
        nn.Linear(COLUMNS, 576), nn.ReLU(), nn.Linear(576, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "history.json")
        stored_run(path)
        with open(path) as file:
            history = History(json.load(file))
    scores = [Score("train_loss", "train_size"), Score("valid_loss", "valid_size")]
    net = Net(module, [*scores, Best("valid_loss")], history)
    generator = torch.Generator().manual_seed(1)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    step = 0
    while step < STEPS:
        net.history.new_epoch()
        order = torch.randperm(RECORDS, generator=generator)
        for first in range(0, RECORDS, BATCH):
            if step == warm:
                start = time.perf_counter()
            rows = order[first : first + BATCH]
            loss = net.train_step(table[rows], labels[rows])
            step += 1
            if step == STEPS:
                break
        net.valid_step(table[RECORDS:], labels[RECORDS:])
        net.end_epoch()
        if len(net.history) % 100 == 0:
            last = net.history[-1]
            print(f"epoch {len(net.history)} train {last['train_loss']:.4f} valid {last['valid_loss']:.4f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
