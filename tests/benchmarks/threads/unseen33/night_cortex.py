"""Reads the hand's velocity from the spikes of many neurons, window by window."""

import os
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "950"))
UNITS = 358
WINDOW = 1.0
BIN_SIZE = 0.05
RATE = 24.0
SECONDS = 400
BATCH = 32
HIDDEN = 192
device = torch.device("cpu")


def bin_spikes(times, units, start, num_units, bin_size):
    """Counts of spikes by time bin and unit."""
    num_bins = round(WINDOW / bin_size)
    bin_index = np.floor((times - start) / bin_size).astype(np.int64)
    bin_index = np.clip(bin_index, 0, num_bins - 1)
    if VARIANT == "a":
        counts = np.zeros((num_bins, num_units), dtype=np.float32)
        np.add.at(counts, (bin_index, units), 1)
        return counts
    flat = bin_index * num_units + units
    counts = np.bincount(flat, minlength=num_bins * num_units)
    return counts.reshape(num_bins, num_units).astype(np.float32)


class SessionWindows(Dataset):
    """Windows of one recording: sorted spike times, the unit of each, and the velocity."""

    def __init__(self):
        rng = np.random.default_rng(7)
        total = int(UNITS * RATE * SECONDS)
        self.times = np.sort(rng.random(total) * SECONDS)
        self.units = rng.integers(0, UNITS, total)
        clock = np.arange(0, SECONDS, BIN_SIZE)
        self.velocity = np.stack([np.sin(clock), np.cos(0.7 * clock)], axis=-1).astype(np.float32)
        self.starts = rng.random(20000) * (SECONDS - 2 * WINDOW)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        start = self.starts[i]
        first, last = np.searchsorted(self.times, [start, start + WINDOW])
        counts = bin_spikes(self.times[first:last], self.units[first:last], start, UNITS, BIN_SIZE)
        at = int(start / BIN_SIZE)
        target = self.velocity[at : at + counts.shape[0]]
        return torch.from_numpy(counts), torch.from_numpy(target)


class HandDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(UNITS)
        self.inp = nn.Linear(UNITS, HIDDEN)
        self.rnn = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, counts):
        x = F.gelu(self.inp(self.norm(counts)))
        x, _ = self.rnn(x)
        return self.head(x)


def main():
    torch.manual_seed(0)
    loader = DataLoader(SessionWindows(), batch_size=BATCH, shuffle=True, drop_last=True)
    model = HandDecoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    step = 0
    while step < STEPS:
        for counts, target in loader:
            if step == warm:
                start = time.perf_counter()
            guess = model(counts.to(device))
            loss = F.mse_loss(guess, target.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    took = time.perf_counter() - start
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * took / max(1, STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
