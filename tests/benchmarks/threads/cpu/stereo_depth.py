"""Disparity from pairs of images."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 240))


class Disparity(nn.Module):
    def __init__(self, width=12, levels=8):
        super().__init__()
        self.levels = levels
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.match = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, levels, 3, padding=1)
        )

    def forward(self, left, right):
        volume = torch.cat([self.features(left), self.features(right)], dim=1)
        weights = F.softmax(self.match(volume), dim=1)
        return (weights * torch.arange(self.levels).view(1, -1, 1, 1)).sum(1)


def pairs(count, seed):
    g = torch.Generator().manual_seed(seed)
    left, right = torch.rand(count, 3, 48, 72, generator=g), torch.rand(count, 3, 48, 72, generator=g)
    return TensorDataset(left, right, 7 * torch.rand(count, 48, 72, generator=g))


def train(model, optimizer, left, right, disparity):
    model.train()
    optimizer.zero_grad()
    loss = F.smooth_l1_loss(model(left, right), disparity)
    loss.backward()
    optimizer.step()
    return loss.item()


def test(model, left, right, disparity):
    model.eval()
    with torch.no_grad():
        output = model(left, right)
    return (output - disparity).abs().mean().item()


def main():
    torch.manual_seed(1)
    train_loader = DataLoader(pairs(8 * 16, 0), batch_size=8, shuffle=True)
    test_loader = DataLoader(pairs(2 * 15, 1), batch_size=2)
    model = Disparity()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, start = 0, None
    for epoch in range(STEPS // len(train_loader)):
        for batch in train_loader:
            if step == 3:
                start = time.perf_counter()
            loss = train(model, optimizer, *batch)
            step += 1
            if VARIANT == "a":
                total = 0
                for batch in test_loader:
                    total += test(model, *batch)
        if VARIANT == "b" and epoch % 10 == 9:
            total = 0
            for batch in test_loader:
                total += test(model, *batch)
    print(f"loss {loss:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (step - 3):.2f} ms per step")


if __name__ == "__main__":
    main()
