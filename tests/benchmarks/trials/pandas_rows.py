"""Tabular data: __getitem__ reads rows from a DataFrame with .iloc and builds a dict.

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import numpy as np, pandas as pd, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class Frame(Dataset):
    def __init__(self, df):
        self.df = df
        self.x = torch.tensor(df.drop(columns="y").to_numpy(np.float32))
        self.y = torch.tensor(df["y"].to_numpy())

    def __len__(self):
        return len(self.df)

    def __getitem__(self, i):
        if FIXED:
            return self.x[i], self.y[i]
        row = self.df.iloc[i]  # planted
        return torch.tensor(row.drop("y").to_numpy(dtype=np.float32)), torch.tensor(int(row["y"]))


df = pd.DataFrame(np.random.randn(20000, 40), columns=[f"f{i}" for i in range(40)])
df["y"] = np.random.randint(0, 3, len(df))
loader = DataLoader(Frame(df), batch_size=128, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Linear(40, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3)
).to(DEV)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
n = 0
for epoch in range(2):
    model.train()
    for data, target in loader:
        if n == 30:
            t0 = time.perf_counter()
        data, target = data.to(DEV), target.to(DEV)
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(model(data), target)
        loss.backward()
        optimizer.step()
        n += 1
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 30):.3f}")
