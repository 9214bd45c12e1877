"""Embeds the hits of a particle detector: hits of one track are to lie together."""

import os
import time

import torch
from pair_utils import random_triplets, random_triplets_by_group
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 650))
HITS, TRACKS, FEATURES = 500, 40, 12


class HitEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], FEATURES
        for _ in range(3):
            layers += [nn.Linear(width, 256), nn.LayerNorm(256), nn.SiLU()]
            width = 256
        self.net = nn.Sequential(*layers, nn.Linear(width, 8))

    def forward(self, hits):
        return nn.functional.normalize(self.net(hits), dim=1)


class TripletMarginLoss(nn.Module):
    def __init__(self, margin=0.1, triplets_per_anchor=1):
        super().__init__()
        self.margin, self.per_anchor = margin, triplets_per_anchor
        self.pick = random_triplets if VARIANT == "a" else random_triplets_by_group

    def forward(self, embeddings, labels):
        anchors, positives, negatives = self.pick(labels, self.per_anchor)
        near = (embeddings[anchors] - embeddings[positives]).norm(dim=1)
        far = (embeddings[anchors] - embeddings[negatives]).norm(dim=1)
        return nn.functional.relu(near - far + self.margin).mean()


class Event:
    """The hits of one collision."""

    def __init__(self, generator):
        self.generator = generator

    def draw(self):
        tracks = torch.randn(TRACKS, FEATURES, generator=self.generator)
        labels = torch.randint(0, TRACKS, (HITS,), generator=self.generator)
        return tracks[labels] + 0.3 * torch.randn(HITS, FEATURES, generator=self.generator), labels


def main():
    torch.manual_seed(0)
    model, criterion = HitEncoder(), TripletMarginLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    events = Event(torch.Generator().manual_seed(1))
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        hits, labels = events.draw()
        loss = criterion(model(hits), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
