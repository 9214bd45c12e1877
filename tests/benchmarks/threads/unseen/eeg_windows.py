"""Decodes imagined movements from windows of EEG."""

import os
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
CHANNELS, SECONDS, RATE, WINDOW = 22, 1600, 125, 250
CROP = ["i_window_in_trial", "i_start_in_trial", "i_stop_in_trial"]


def recording():
    rng = np.random.default_rng(0)
    return rng.standard_normal((CHANNELS, SECONDS * RATE), dtype=np.float32)


def make_metadata():
    starts = np.arange(0, SECONDS * RATE - WINDOW, 25)
    return pd.DataFrame(
        {
            "i_window_in_trial": np.arange(len(starts)) % 16,
            "i_start_in_trial": starts,
            "i_stop_in_trial": starts + WINDOW,
            "target": np.random.default_rng(1).integers(0, 4, len(starts)),
            "subject": 3,
            "session": "session_T",
        }
    )


class WindowsDataset(Dataset):
    def __init__(self, raw, metadata):
        self.raw, self.metadata = raw, metadata
        if VARIANT == "b":
            self.y = metadata["target"].to_numpy()
            self.crop_inds = metadata[CROP].to_numpy()

    def __len__(self):
        return len(self.metadata)

    def __getitem__(self, index):
        if VARIANT == "b":
            y, crop_inds = self.y[index], self.crop_inds[index]
        else:
            y = self.metadata.iloc[index]["target"]
            crop_inds = self.metadata.iloc[index][CROP].tolist()
        X = self.raw[:, crop_inds[1] : crop_inds[2]]
        return torch.from_numpy(X), int(y)


class ShallowNet(nn.Module):
    def __init__(self, filters=32):
        super().__init__()
        self.filter = nn.Conv1d(CHANNELS, filters, 25, bias=False)
        self.norm = nn.BatchNorm1d(filters)
        self.pool = nn.AvgPool1d(50, stride=12)
        self.classify = nn.LazyLinear(4)

    def forward(self, x):
        x = self.norm(self.filter(x))
        x = self.pool(x.square()).clamp(min=1e-6).log()
        return self.classify(x.flatten(1))


def main():
    torch.manual_seed(0)
    dataset = WindowsDataset(recording(), make_metadata())
    loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
    model = ShallowNet()
    model(torch.zeros(2, CHANNELS, WINDOW))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    step = 0
    while step < STEPS:
        for X, y in loader:
            if step == 5:
                start = time.perf_counter()
            loss = nn.functional.cross_entropy(model(X), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
