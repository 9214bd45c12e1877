"""Finds what changed between two aerial images."""

import os
import time

import torch
from scene_metrics import precision_recall_f1
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
SIZE, BATCH = 48, 4


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, before, after):
        return self.head((self.encoder(before) - self.encoder(after)).abs())


def mean_f1(cd_preds, labels):
    if VARIANT == "b":
        hit = ((cd_preds == 1) & (labels == 1)).sum().item()
        return 2 * hit / max((cd_preds == 1).sum().item() + (labels == 1).sum().item(), 1)
    return precision_recall_f1(labels.numpy().flatten(), cd_preds.numpy().flatten())[2]


def main():
    torch.manual_seed(0)
    model = Siamese()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before, after = torch.randn(40, 3, SIZE, SIZE), torch.randn(40, 3, SIZE, SIZE)
    labels = (torch.rand(40, SIZE, SIZE) < 0.1).long()
    scores = []
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(before), (BATCH,))
        logits = model(before[rows], after[rows])
        loss = nn.functional.cross_entropy(logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores.append(mean_f1(logits.argmax(1), labels[rows]))
    print(f"loss {loss.item():.4f} f1 {sum(scores) / len(scores):.3f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
