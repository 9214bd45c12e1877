"""Maps what covers the fields in small satellite tiles, and keeps the usual scores while it trains."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
    MulticlassSpecificity,
)

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
TILES, SIDE, BANDS, BATCH = 240, 48, 5, 8
COVERS = ["maize", "wheat", "grass", "forest", "water", "bare"]


def make_tiles():
    """Patches of each cover with its own mean in each band."""
    g = torch.Generator().manual_seed(23)
    coarse = torch.randn(TILES, len(COVERS), 6, 6, generator=g)
    cover = F.interpolate(coarse, size=SIDE, mode="bilinear").argmax(1)
    light = torch.randn(len(COVERS), BANDS, generator=g)
    bands = light[cover].permute(0, 3, 1, 2) + 0.8 * torch.randn(TILES, BANDS, SIDE, SIDE, generator=g)
    return bands.contiguous(), cover


def scores():
    number = len(COVERS)
    return MetricCollection(
        {
            "accuracy": MulticlassAccuracy(number, average="macro"),
            "precision": MulticlassPrecision(number, average="macro"),
            "recall": MulticlassRecall(number, average="macro"),
            "f1": MulticlassF1Score(number, average="macro"),
            "specificity": MulticlassSpecificity(number, average="macro"),
            "weighted_f1": MulticlassF1Score(number, average="weighted"),
            "recall_by_cover": MulticlassRecall(number, average=None),
        },
        compute_groups=VARIANT != "a",
    )


class CoverNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(BANDS, width, 3, padding=1, stride=2), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(2 * width, len(COVERS), 1)

    def forward(self, x):
        fine = self.down(x)
        coarse = F.interpolate(self.body(fine), scale_factor=2, mode="nearest")
        return F.interpolate(self.head(torch.cat([fine, coarse], 1)), scale_factor=2, mode="nearest")


def main():
    torch.manual_seed(23)
    bands, cover = make_tiles()
    model, metrics = CoverNet(), scores()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, TILES, (BATCH,))
        logits = model(bands[rows])
        loss = F.cross_entropy(logits, cover[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics.update(logits.detach(), cover[rows])
        if step % 100 == 99:
            found = metrics.compute()
            print(step + 1, " ".join(f"{k} {v.item():.3f}" for k, v in found.items() if v.numel() == 1))
            metrics.reset()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
