"""Grouping of charged-particle tracks: pixels of one particle are drawn together in a learned space."""

import os
import time
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1300))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

SIZE = 64 if SMALL else 256
FILTERS = 8 if SMALL else 32
DEPTH = 3 if SMALL else 5
BATCH = 2 if SMALL else 4
CLASSES = 2 if SMALL else 4
EVENTS = 6 if SMALL else 64
LOW, HIGH = (2, 4) if SMALL else (4, 9)
EPS = 1e-6
LOG_EVERY = 50
EVAL_EVERY = 300


def make_events(seed=0):
    """Images with straight tracks; each pixel of a track knows its kind and its particle."""
    gen = torch.Generator().manual_seed(seed)
    events = []
    for _ in range(EVENTS):
        image = torch.zeros(1, SIZE, SIZE)
        kind = torch.full((SIZE, SIZE), -1, dtype=torch.long)
        group = torch.full((SIZE, SIZE), -1, dtype=torch.long)
        number = 0
        for c in range(CLASSES):
            for _ in range(int(torch.randint(LOW, HIGH, (1,), generator=gen))):
                ends = torch.rand(2, 2, generator=gen) * (SIZE - 1)
                t = torch.linspace(0, 1, SIZE // 2)[:, None]
                line = (ends[0] + t * (ends[1] - ends[0])).round().long()
                image[0, line[:, 0], line[:, 1]] = 0.5 + 0.1 * c
                kind[line[:, 0], line[:, 1]] = c
                group[line[:, 0], line[:, 1]] = number
                number += 1
        events.append((image, kind, group))
    return events


def collate(events):
    """Images as a batch; labels as lists of pixels with the number of their event first."""
    image = torch.stack([e[0] for e in events])
    pixels, kinds, groups = [], [], []
    for i, (_, kind, group) in enumerate(events):
        where = (kind >= 0).nonzero()
        pixels.append(torch.cat([torch.full((len(where), 1), i), where], dim=1))
        kinds.append(kind[where[:, 0], where[:, 1]])
        groups.append(group[where[:, 0], where[:, 1]])
    return image, torch.cat(pixels), torch.cat(kinds), torch.cat(groups)


def double(inputs, outputs):
    layers = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers)


class UResNet(nn.Module):
    """A U-shaped network with three heads: offsets, margins and seediness."""

    def __init__(self):
        super().__init__()
        widths = [FILTERS * (i + 1) for i in range(DEPTH)]
        self.down = nn.ModuleList(double(1 if i == 0 else widths[i - 1], widths[i]) for i in range(DEPTH))
        self.up = nn.ModuleList(
            double(widths[i] + widths[i - 1], widths[i - 1]) for i in range(DEPTH - 1, 0, -1)
        )
        self.heads = nn.Conv2d(widths[0], 4, 1)

    def forward(self, image, pixels):
        skips, x = [], image
        for i, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for layer, skip in zip(self.up, skips[-2::-1]):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2), skip], dim=1))
        out = self.heads(x).permute(0, 2, 3, 1)[pixels[:, 0], pixels[:, 1], pixels[:, 2]]
        place = pixels[:, 1:].float() / SIZE
        return place + torch.tanh(out[:, :2]), 2 * torch.sigmoid(out[:, 2]) + 0.05, torch.sigmoid(out[:, 3])


class SpatialEmbeddingLoss(nn.Module):
    """Mask, smoothing and seed terms, per event and per kind of particle."""

    def find_cluster_means(self, features, labels):
        means = []
        for c in labels.unique(sorted=True):
            means.append(features[labels == c].mean(dim=0))
        return torch.stack(means)

    def one_by_one(self, embeddings, margins, labels):
        centroids = self.find_cluster_means(embeddings, labels)
        clusters = labels.unique(sorted=True)
        probs = torch.zeros_like(margins)
        loss, smoothing, accuracy = 0.0, 0.0, 0.0
        for i, c in enumerate(clusters):
            index = labels == c
            mask = torch.zeros_like(margins)
            mask[index] = 1.0
            sigma = margins[index].mean()
            dists = (embeddings - centroids[i]).square().sum(dim=1)
            p = torch.exp(-dists / (2 * sigma.square())).clamp(EPS, 1 - EPS)
            probs[index] = p[index].detach()
            loss = loss + F.binary_cross_entropy(p, mask)
            smoothing = smoothing + (margins[index] - sigma.detach()).square().mean()
            inside = p.detach() > 0.5
            accuracy = accuracy + (inside & index).sum() / (inside | index).sum()
        n = len(clusters)
        return loss / n, smoothing / n, probs, accuracy / n

    def together(self, embeddings, margins, labels):
        clusters, inverse, counts = labels.unique(sorted=True, return_inverse=True, return_counts=True)
        n = len(clusters)
        sums = embeddings.new_zeros(n, 2).index_add(0, inverse, embeddings)
        centroids = sums / counts[:, None]
        sigma = margins.new_zeros(n).index_add(0, inverse, margins) / counts
        dists = (embeddings[:, None] - centroids[None]).square().sum(-1)
        p = torch.exp(-dists / (2 * sigma.square())).clamp(EPS, 1 - EPS)
        target = F.one_hot(inverse, n).to(p.dtype)
        loss = F.binary_cross_entropy(p, target)
        spread = (margins - sigma.detach()[inverse]).square()
        smoothing = (spread.new_zeros(n).index_add(0, inverse, spread) / counts).mean()
        inside, truth = p.detach() > 0.5, target > 0
        accuracy = ((inside & truth).sum(0) / (inside | truth).sum(0)).mean()
        return loss, smoothing, p.detach().gather(1, inverse[:, None]).squeeze(1), accuracy

    def forward(self, embeddings, margins, seediness, pixels, kinds, groups):
        parts = defaultdict(list)
        per_class = self.one_by_one if VARIANT == "a" else self.together
        for event in range(BATCH):
            here = pixels[:, 0] == event
            e, m, s, k, g = embeddings[here], margins[here], seediness[here], kinds[here], groups[here]
            for kind in range(CLASSES):
                index = k == kind
                mask_loss, smoothing, probs, acc = per_class(e[index], m[index], g[index])
                seed = (probs - s[index]).abs().mean()
                parts["loss"].append(mask_loss + smoothing + seed)
                parts["accuracy"].append(acc)
        return torch.stack(parts["loss"]).mean(), torch.stack(parts["accuracy"]).mean().detach()


def main():
    torch.manual_seed(0)
    events = make_events()
    loaded = [collate(events[i : i + BATCH]) for i in range(0, EVENTS - BATCH + 1, BATCH)]
    loaded = [[t.to(device) for t in batch] for batch in loaded]
    train, valid = loaded[:-1], loaded[-1]
    model, criterion = UResNet().to(device), SpatialEmbeddingLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        image, pixels, kinds, groups = train[step % len(train)]
        optimizer.zero_grad(set_to_none=True)
        loss, accuracy = criterion(*model(image, pixels), pixels, kinds, groups)
        loss.backward()
        optimizer.step()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1} loss {loss.item():.4f} overlap {accuracy.item():.3f}")
        if (step + 1) % EVAL_EVERY == 0:
            with torch.no_grad():
                held, _ = criterion(*model(valid[0], valid[1]), *valid[1:])
            print(f"step {step + 1} held out {held.item():.4f}")
        last = loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
