"""Finds the wall of an artery in single frames of ultrasound scans; scans are kept compressed."""

import os
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
SCANS, FRAMES, SIDE, BATCH = 6, 48, 96, 8


class ChunkedArray:
    """Frames of a scan, compressed in chunks of several."""

    def __init__(self, frames, chunk):
        self.chunk, self.shape = chunk, frames.shape[1:]
        self.parts = [zlib.compress(frames[i : i + chunk].tobytes(), 4) for i in range(0, len(frames), chunk)]

    def __getitem__(self, i):
        part = np.frombuffer(zlib.decompress(self.parts[i // self.chunk]), dtype=np.int16)
        return part.reshape(-1, *self.shape)[i % self.chunk]


class Frames(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        chunk = 1 if VARIANT == "b" else 16
        self.scans = []
        for _ in range(SCANS):
            frames = rng.normal(0, 20, (FRAMES, SIDE, SIDE)).astype(np.int16)
            self.scans.append(ChunkedArray(frames, chunk))

    def __len__(self):
        return SCANS * FRAMES

    def __getitem__(self, i):
        frame = self.scans[i // FRAMES][i % FRAMES].astype(np.float32) / 20
        return frame[None], frame.max(0)


class WallFinder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, 1, 2), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Conv2d(width, width, 3, 1, 1),
            nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        return self.head(self.body(x).mean(2))[:, 0]


def main():
    torch.manual_seed(0)
    loader = DataLoader(Frames(), batch_size=BATCH, shuffle=True)
    model = WallFinder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while step < STEPS:
        for frames, wall in loader:
            if step == 5:
                start = time.perf_counter()
            loss = nn.functional.smooth_l1_loss(model(frames), wall)
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
