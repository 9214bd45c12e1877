"""Knows people by their gait, from clips of different lengths."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
VIDEOS, FRAMES, SIZE, PEOPLE = 40, 240, 64, 30


def film(folder):
    rng = np.random.default_rng(0)
    for i in range(VIDEOS):
        silhouettes = rng.integers(0, 255, (FRAMES, 3, SIZE, SIZE), dtype=np.uint8)
        np.save(Path(folder, f"{i}.npy"), silhouettes)


class Walks(Dataset):
    def __init__(self, folder, number):
        self.folder, self.number = folder, number

    def __len__(self):
        return self.number

    def __getitem__(self, i):
        video = torch.from_numpy(np.load(Path(self.folder, f"{i % VIDEOS}.npy")))
        length = 4 + i % 9
        first = torch.randint(0, FRAMES - length, ()).item()
        clip = video[first : first + length]
        if VARIANT == "b":
            clip = clip.clone()
        return {"clip": clip, "person": i % PEOPLE}


class GaitNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * width, PEOPLE)

    def forward(self, clips):
        features = self.frames(torch.cat(clips).float() / 255)
        parts = features.split([len(clip) for clip in clips])
        return self.head(torch.stack([part.amax(dim=0) for part in parts]))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        film(folder)
        loader = DataLoader(
            Walks(folder, 4 * STEPS), batch_size=4, shuffle=True, num_workers=1, collate_fn=list
        )
        model = GaitNet()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step, walks in enumerate(loader):
            if step == 5:
                start = time.perf_counter()
            scores = model([walk["clip"] for walk in walks])
            loss = nn.functional.cross_entropy(scores, torch.tensor([walk["person"] for walk in walks]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
