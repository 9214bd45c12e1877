"""Recommender whose Dataset opens an SQLite file and runs a query for each item.

Planted: input-bound (the line is marked). --fixed: the table read once, before training.
"""

import os
import sqlite3
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


def make_db(path, rows=6000):
    rng = np.random.default_rng(0)
    con = sqlite3.connect(path)
    con.execute("create table clicks (id integer primary key, user int, item int, feats blob, y real)")
    con.executemany(
        "insert into clicks values (?,?,?,?,?)",
        [
            (
                i,
                int(rng.integers(2000)),
                int(rng.integers(5000)),
                rng.random(32, np.float32).tobytes(),
                float(i % 2),
            )
            for i in range(rows)
        ],
    )
    con.commit()
    con.close()


class Clicks(Dataset):
    def __init__(self, path):
        self.path = path
        self.n = sqlite3.connect(path).execute("select count(*) from clicks").fetchone()[0]
        self.rows = None
        if FIXED:
            self.rows = sqlite3.connect(path).execute("select user, item, feats, y from clicks").fetchall()

    def __len__(self):
        return self.n

    def read(self, i):
        if self.rows is not None:
            return self.rows[i]
        con = sqlite3.connect(self.path)
        row = con.execute("select user, item, feats, y from clicks where id = ?", (i,)).fetchone()  # planted
        con.close()
        return row

    def __getitem__(self, i):
        user, item, feats, y = self.read(i)
        return user, item, torch.from_numpy(np.frombuffer(feats, np.float32).copy()), torch.tensor(y)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.i = nn.Embedding(2000, 64), nn.Embedding(5000, 64)
        self.mlp = nn.Sequential(nn.Linear(160, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, u, i, f):
        return self.mlp(torch.cat([self.u(u), self.i(i), f], 1))[:, 0]


def main():
    path = os.path.join(tempfile.mkdtemp(), "clicks.db")
    make_db(path)
    loader = DataLoader(Clicks(path), batch_size=64, shuffle=True, drop_last=True)
    model = Ranker().to(DEV)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    bce = nn.BCEWithLogitsLoss()
    seen, t0 = 0, 0.0
    for epoch in range(2):
        for u, i, f, y in loader:
            seen += 1
            if seen == 20:
                t0 = time.perf_counter()
            loss = bce(model(u.to(DEV), i.to(DEV), f.to(DEV)), y.float().to(DEV))
            opt.zero_grad()
            loss.backward()
            opt.step()
    print(f"step_ms={(time.perf_counter() - t0) * 1000 / (seen - 20):.3f}")


if __name__ == "__main__":
    main()
