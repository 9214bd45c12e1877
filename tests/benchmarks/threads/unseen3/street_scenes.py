"""Segments street scenes with a loss that follows the intersection over union."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
CLASSES, SIZE, BATCH = 19, 40, 4


def gradient_of_jaccard(sorted_truth):
    total = sorted_truth.sum(-1, keepdim=True)
    intersection = total - sorted_truth.cumsum(-1)
    union = total + (1 - sorted_truth).cumsum(-1)
    jaccard = 1.0 - intersection / union
    return torch.cat([jaccard[..., :1], jaccard[..., 1:] - jaccard[..., :-1]], -1)


def lovasz_softmax(logits, labels):
    flat = logits.softmax(1).permute(1, 0, 2, 3).reshape(CLASSES, -1)
    truth = nn.functional.one_hot(labels.flatten(), CLASSES).T.float()
    if VARIANT == "b":
        errors, order = (truth - flat).abs().sort(dim=1, descending=True)
        return (errors * gradient_of_jaccard(truth.gather(1, order))).sum(1).mean()
    losses = []
    for c in range(CLASSES):
        here = (labels == c).flatten().float()
        for image in range(BATCH):
            part = slice(image * SIZE * SIZE, (image + 1) * SIZE * SIZE)
            errors = (here[part] - flat[c, part]).abs()
            errors, order = torch.sort(errors, 0, descending=True)
            losses.append(torch.dot(errors, gradient_of_jaccard(here[part][order])))
    return torch.stack(losses).mean()


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, CLASSES, 1),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


def main():
    torch.manual_seed(0)
    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(32, 3, SIZE, SIZE)
    labels = torch.randint(0, CLASSES, (32, SIZE, SIZE))
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(images), (BATCH,))
        loss = lovasz_softmax(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
