"""Cleans speech with a mask over its spectrum; utterances come in many lengths."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
BANDS, BATCH, FIRST = 257, 8, 60


class Masker(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.squeeze = nn.Linear(BANDS, width)
        self.expand = nn.Linear(width, BANDS)
        self.gain, self.bias = nn.Parameter(torch.ones(BANDS)), nn.Parameter(torch.zeros(BANDS))

    def forward(self, noisy):
        level = torch.log1p(noisy.abs())
        level = (level - level.mean(-1, keepdim=True)) / (level.std(-1, keepdim=True) + 1e-5)
        hidden = torch.nn.functional.gelu(self.squeeze(level * self.gain + self.bias))
        mask = torch.sigmoid(self.expand(hidden)) * torch.tanh(level) + 0.1 * torch.exp(-level.square())
        return noisy * mask / (1 + mask.abs()).sqrt()


def distance(cleaned, clean):
    log = torch.log(cleaned.square() + 1e-4) - torch.log(clean.square() + 1e-4)
    return (log.abs() / (1 + log.abs())).mean() + (cleaned - clean).square().mean()


def main():
    torch.manual_seed(0)
    model = Masker()
    dynamic = True if VARIANT == "b" else False
    run = torch.compile(lambda x, y: distance(model(x), y), dynamic=dynamic)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    speech = torch.randn(BATCH, 400, BANDS)
    for step in range(STEPS):
        if step == FIRST:
            start = time.perf_counter()
        length = int(torch.randint(160, 400, ()))
        clean = speech[:, :length]
        loss = run(clean + 0.3 * torch.randn_like(clean), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - FIRST):.2f} ms per step")


if __name__ == "__main__":
    main()
