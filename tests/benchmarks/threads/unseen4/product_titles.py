"""Titles of the same product are to lie near each other."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
WORDS, WIDTH, LENGTH, PRODUCTS, BATCH, MARGIN = 6000, 128, 16, 900, 128, 0.3


class TitleEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 256, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1)
        self.pool = nn.Linear(WIDTH, 64)

    def forward(self, tokens):
        return nn.functional.normalize(self.pool(self.body(self.words(tokens)).mean(1)), dim=1)


def distances(embeddings):
    dots = embeddings @ embeddings.T
    squares = dots.diagonal()
    gaps = (squares[:, None] - 2 * dots + squares[None]).clamp(min=0)
    zero = gaps == 0
    return torch.where(zero, 0.0, (gaps + zero * 1e-16).sqrt())


def masked_min(data, mask):
    top = data.max(1, keepdim=True)[0]
    return ((data - top) * mask).min(1, keepdim=True)[0] + top


def masked_max(data, mask):
    low = data.min(1, keepdim=True)[0]
    return ((data - low) * mask).max(1, keepdim=True)[0] + low


class SemiHardTripletLoss(nn.Module):
    """For each pair, the nearest title of another product that is farther away than the pair."""

    def nearest_outside(self, pairwise, other):
        size = len(pairwise)
        tile = pairwise.repeat(size, 1)
        mask = other.repeat(size, 1) & (tile > pairwise.t().reshape(-1, 1))
        found = mask.any(1).view(size, size).t()
        return torch.where(found, masked_min(tile, mask).view(size, size).t(), masked_max(pairwise, other))

    def nearest_outside_sorted(self, pairwise, other):
        far = pairwise.detach().masked_fill(~other, float("inf")).sort(dim=1, stable=True)
        place = torch.searchsorted(far.values, pairwise.detach().contiguous(), right=True)
        place = place.clamp(max=len(pairwise) - 1)
        found = far.values.gather(1, place).isfinite()
        return torch.where(
            found, pairwise.gather(1, far.indices.gather(1, place)), masked_max(pairwise, other)
        )

    def forward(self, embeddings, labels):
        pairwise = distances(embeddings)
        same = labels[:, None] == labels[None]
        nearest = self.nearest_outside if VARIANT == "a" else self.nearest_outside_sorted
        negatives = nearest(pairwise, ~same)
        positives = same.float().fill_diagonal_(0)
        losses = (MARGIN + pairwise - negatives).clamp(min=0) * positives
        return losses.sum() / positives.sum().clamp(min=1)


class Catalogue:
    def __init__(self):
        self.titles = torch.randint(0, WORDS, (PRODUCTS, LENGTH))

    def draw(self):
        labels = torch.randint(0, PRODUCTS, (BATCH // 4,)).repeat_interleave(4)
        tokens = self.titles[labels]
        swapped = torch.rand(tokens.shape) < 0.3
        return torch.where(swapped, torch.randint(0, WORDS, tokens.shape), tokens), labels


def main():
    torch.manual_seed(0)
    model, criterion, catalogue = TitleEncoder(), SemiHardTripletLoss(), Catalogue()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        tokens, labels = catalogue.draw()
        loss = criterion(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
