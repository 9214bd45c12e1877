"""Imagined movements from EEG; noise is added to each batch."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
TRIALS, CHANNELS, LENGTH, CLASSES, BATCH = 512, 22, 1000, 4, 64


class GaussianNoise:
    def __init__(self, std, seed):
        self.std, self.rng = std, np.random.RandomState(seed)

    def __call__(self, x):
        if VARIANT == "b":
            return x + self.std * torch.randn_like(x)
        noise = torch.from_numpy(self.rng.normal(loc=np.zeros(x.shape), scale=1)).float().to(x.device)
        return x + self.std * noise


class ShallowDecoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.time = nn.Conv2d(1, width, (1, 65), padding=(0, 32), bias=False)
        self.space = nn.Conv2d(width, 2 * width, (CHANNELS, 1), bias=False)
        self.norm = nn.BatchNorm2d(2 * width)
        self.more = nn.Sequential(
            nn.ELU(), nn.AvgPool2d((1, 8)), nn.Conv2d(2 * width, 2 * width, (1, 16)), nn.ELU()
        )
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x):
        x = self.more(self.norm(self.space(self.time(x[:, None]))))
        return self.head(x.mean((2, 3)))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    trials = torch.randn(TRIALS, CHANNELS, LENGTH, device=device)
    labels = torch.randint(0, CLASSES, (TRIALS,), device=device)
    model, augment = ShallowDecoder().to(device), GaussianNoise(0.1, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(STEPS):
        if step == 15:
            torch.cuda.synchronize()
            start = time.perf_counter()
        picked = torch.randint(0, TRIALS, (BATCH,), device=device)
        loss = nn.functional.cross_entropy(model(augment(trials[picked])), labels[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 15):.2f} ms per step")


if __name__ == "__main__":
    main()
