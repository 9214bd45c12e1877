"""Birds by way of 112 concepts."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 40))
CONCEPTS = 112


class Birds(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, 32, 64, 128]
        stages = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            stages += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            stages += [
                nn.Conv2d(after, after, 3, padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        self.body = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.concepts = nn.Linear(128, CONCEPTS)
        self.species = nn.Linear(CONCEPTS, 200)

    def forward(self, images):
        concepts = self.concepts(self.body(images)).sigmoid()
        return concepts, self.species(concepts)


def concept_loss(predicted, truth):
    if VARIANT == "a":
        loss = 0
        for c in range(CONCEPTS):
            loss = loss + F.binary_cross_entropy(predicted[:, c], truth[:, c])
        return loss
    return F.binary_cross_entropy(predicted, truth, reduction="none").mean(0).sum()


def main():
    torch.manual_seed(0)
    model = Birds()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        images = torch.rand(16, 3, 64, 64)
        truth = torch.randint(0, 2, (16, CONCEPTS)).float()
        species = torch.randint(0, 200, (16,))
        concepts, scores = model(images)
        loss = F.cross_entropy(scores, species) + 0.1 * concept_loss(concepts, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
