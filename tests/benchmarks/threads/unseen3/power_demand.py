"""Forecasts the demand of power from the last days."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
FEATURES, HOURS, WIDTH, BATCH = 24, 72, 96, 16


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.norm(self.rnn(self.embed(x))[0]))


def main():
    torch.manual_seed(0)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    past = torch.randn(320, HOURS, FEATURES)
    demand = past.sum(-1, keepdim=True)
    mixed = VARIANT != "b"
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(past), (BATCH,))
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16, enabled=mixed):
            loss = nn.functional.mse_loss(model(past[rows]).float(), demand[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
