"""A deep residual network on features, with a run tracker."""

import os
import tempfile
import time
from pathlib import Path

import torch
from run_tracker import Tracker
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
WIDTH, BLOCKS = 96, 15


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(WIDTH, 2 * WIDTH)
        self.two = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.two(torch.relu(self.one(x)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.head(self.blocks(x))


def main():
    torch.manual_seed(0)
    model = Residual()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    x = torch.randn(4096, WIDTH)
    y = torch.randint(0, 10, (4096,))
    with tempfile.TemporaryDirectory() as folder:
        tracker = Tracker(Path(folder) / "run.json")
        if VARIANT == "a":
            tracker.watch(model)
        for step in range(STEPS):
            if step == 10:
                start = time.perf_counter()
            picked = torch.randint(0, len(x), (128,))
            loss = nn.functional.cross_entropy(model(x[picked]), y[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.commit(loss=loss.item(), rate=optimizer.param_groups[0]["lr"])
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")


if __name__ == "__main__":
    main()
