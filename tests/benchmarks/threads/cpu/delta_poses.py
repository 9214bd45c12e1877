"""Interpolates poses between key frames with attention."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))


class Clips(Dataset):
    def __init__(self, count=6400, frames=24, joints=22):
        g = torch.Generator().manual_seed(0)
        self.poses = torch.randn(count, frames, joints * 6, generator=g).cumsum(1) * 0.1

    def __len__(self):
        return len(self.poses)

    def __getitem__(self, i):
        clip = self.poses[i]
        return clip[::4], clip


class Interpolator(nn.Module):
    def __init__(self, width=128, size=132):
        super().__init__()
        self.enter = nn.Linear(size, width)
        self.frames = nn.Parameter(torch.randn(24, width) * 0.02)
        layer = nn.TransformerDecoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerDecoder(layer, 2)
        self.leave = nn.Linear(width, size)

    def forward(self, keys):
        straight = nn.functional.interpolate(keys.transpose(1, 2), size=24, mode="linear").transpose(1, 2)
        hidden = self.layers(self.frames.expand(len(keys), -1, -1), self.enter(keys))
        return straight + self.leave(hidden)


def main():
    torch.manual_seed(0)
    options = {"num_workers": 1, "batch_size": 32, "shuffle": True}
    if VARIANT == "b":
        options |= {"persistent_workers": True, "pin_memory": True}
    loader = DataLoader(Clips(), **options)
    model = Interpolator()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    step = 0
    while step < STEPS:
        for keys, clip in loader:
            if step == 10:
                start = time.perf_counter()
            loss = nn.functional.l1_loss(model(keys), clip)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")


if __name__ == "__main__":
    main()
