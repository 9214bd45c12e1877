"""A classifier with a running figure of its accuracy and calibration."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
CLASSES = 20


class Scores:
    """Over all that was seen."""

    def __init__(self):
        self.outputs, self.labels = [], []

    def update(self, scores, labels):
        self.outputs.append(scores.detach().softmax(-1))
        self.labels.append(labels)
        outputs, labels = torch.cat(self.outputs), torch.cat(self.labels)
        sure, best = outputs.max(-1)
        right = (best == labels).float()
        return right.mean().item(), (sure - right).mean().item()


class RunningScores:
    def __init__(self):
        self.right, self.gap, self.count = torch.zeros(()), torch.zeros(()), 0

    def update(self, scores, labels):
        sure, best = scores.detach().softmax(-1).max(-1)
        right = (best == labels).float()
        self.right += right.sum()
        self.gap += (sure - right).sum()
        self.count += len(labels)
        return (self.right / self.count).item(), (self.gap / self.count).item()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    metric = Scores() if VARIANT == "a" else RunningScores()
    x, y = torch.randn(16384, 64), torch.randint(0, CLASSES, (16384,))
    for step in range(STEPS):
        if step == STEPS // 2:
            start = time.perf_counter()
        picked = torch.randint(0, len(x), (256,))
        scores, labels = model(x[picked]), y[picked]
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy, gap = metric.update(scores, labels)
    print(f"loss {loss.item():.4f} accuracy {accuracy:.4f} gap {gap:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - STEPS // 2):.2f} ms per step")


if __name__ == "__main__":
    main()
