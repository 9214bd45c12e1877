"""Foretells swarming from half a day of a beehive's sensors."""

import os
import time

import numpy as np
import torch
from datasets import Array2D, Dataset, Features, Value
from torch import nn
from torch.utils.data import DataLoader

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
MINUTES, SENSORS = 144, 20


def hives(number=1500):
    rng = np.random.default_rng(0)
    features = Features(
        {
            "readings": Array2D((MINUTES, SENSORS), dtype="float32"),
            "weather": Array2D((MINUTES, 4), dtype="float32"),
            "swarms": Value("int64"),
        }
    )
    data = {
        "readings": list(rng.standard_normal((number, MINUTES, SENSORS), dtype=np.float32)),
        "weather": list(rng.standard_normal((number, MINUTES, 4), dtype=np.float32)),
        "swarms": rng.integers(0, 2, number),
    }
    dataset = Dataset.from_dict(data, features=features)
    return dataset.with_format("numpy") if VARIANT == "b" else dataset


def collate(rows):
    readings = torch.tensor(np.array([row["readings"] for row in rows]), dtype=torch.float32)
    weather = torch.tensor(np.array([row["weather"] for row in rows]), dtype=torch.float32)
    swarms = torch.tensor([int(row["swarms"]) for row in rows])
    return torch.cat([readings, weather], dim=-1), swarms


class SwarmNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Conv1d(SENSORS + 4, width, 6, stride=6)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x.mT).mT).mean(dim=1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(hives(), batch_size=16, shuffle=True, drop_last=True, collate_fn=collate)
    model = SwarmNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    step = 0
    while step < STEPS:
        for readings, swarms in loader:
            if step == 5:
                start = time.perf_counter()
            loss = nn.functional.cross_entropy(model(readings), swarms)
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
