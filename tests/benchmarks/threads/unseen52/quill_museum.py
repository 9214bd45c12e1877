"""Embeds photographs of museum objects so that the same object lies close (online triplets)."""

import os
import time
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3500))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

OBJECTS, PHOTOS, SIDE = (12, 8, 16) if SMALL else (60, 40, 48)
N_CLASSES, N_SAMPLES = (3, 4) if SMALL else (8, 16)
MARGIN = 1.0


def to_device(array):
    """Copies an array or a tensor of the host without waiting for the copy."""
    tensor = torch.as_tensor(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device == "cuda" else tensor


def pdist(vectors):
    """Squared distances between all pairs of rows."""
    squares = vectors.pow(2).sum(dim=1)
    return -2 * vectors.mm(vectors.t()) + squares.view(1, -1) + squares.view(-1, 1)


def hardest_negative(loss_values):
    """Place of the largest loss, if it is above nought."""
    place = int(np.argmax(loss_values))
    return place if loss_values[place] > 0 else None


class TripletSelector:
    """All pairs of the same object in a batch, each with a negative chosen by a function."""

    def __init__(self, margin, choose):
        self.margin = margin
        self.choose = choose

    def get_triplets(self, embeddings, labels):
        distance_matrix = pdist(embeddings).cpu()
        labels = labels.cpu().numpy()
        triplets = []
        for label in sorted(set(labels.tolist())):
            label_mask = labels == label
            label_indices = np.where(label_mask)[0]
            if len(label_indices) < 2:
                continue
            negative_indices = np.where(np.logical_not(label_mask))[0]
            anchor_positives = np.array(list(combinations(label_indices, 2)))
            ap_distances = distance_matrix[anchor_positives[:, 0], anchor_positives[:, 1]]
            if VARIANT == "a":
                for anchor_positive, ap_distance in zip(anchor_positives, ap_distances):
                    anchor = torch.LongTensor(np.array([anchor_positive[0]]))
                    to_others = distance_matrix[anchor, torch.LongTensor(negative_indices)]
                    loss_values = (ap_distance - to_others + self.margin).detach().cpu().numpy()
                    self._append(triplets, anchor_positive, loss_values, negative_indices)
            else:
                anchors = torch.from_numpy(anchor_positives[:, 0])
                to_others = distance_matrix[anchors][:, torch.from_numpy(negative_indices)]
                table = (ap_distances.unsqueeze(1) - to_others + self.margin).detach().numpy()
                for anchor_positive, loss_values in zip(anchor_positives, table):
                    self._append(triplets, anchor_positive, loss_values, negative_indices)
        if not triplets:
            triplets.append([0, 1, int(np.where(labels != labels[0])[0][0])])
        return torch.from_numpy(np.array(triplets, dtype=np.int64))

    def _append(self, triplets, anchor_positive, loss_values, negative_indices):
        chosen = self.choose(loss_values)
        if chosen is not None:
            triplets.append([anchor_positive[0], anchor_positive[1], negative_indices[chosen]])


class OnlineTripletLoss(nn.Module):
    """Triplet loss over the triplets that the selector finds in the batch."""

    def __init__(self, margin, selector):
        super().__init__()
        self.margin = margin
        self.selector = selector

    def forward(self, embeddings, labels):
        triplets = self.selector.get_triplets(embeddings, labels).to(embeddings.device)
        anchors, positives, negatives = (embeddings.index_select(0, triplets[:, k]) for k in range(3))
        ap = (anchors - positives).pow(2).sum(1)
        an = (anchors - negatives).pow(2).sum(1)
        return F.relu(ap - an + self.margin).mean(), triplets.shape[0]


class EmbeddingNet(nn.Module):
    """Residual network that ends in an embedding."""

    def __init__(self, widths=(32, 64, 128, 256), size=64):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList()
        self.body = nn.ModuleList()
        for before, width in zip((widths[0], *widths[:-1]), widths):
            self.down.append(nn.Conv2d(before, width, 3, 2, 1))
            self.body.append(
                nn.Sequential(
                    nn.BatchNorm2d(width),
                    nn.PReLU(),
                    nn.Conv2d(width, width, 3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.PReLU(),
                    nn.Conv2d(width, width, 3, padding=1),
                )
            )
        self.fc = nn.Linear(widths[-1], size)

    def forward(self, x):
        x = self.stem(x)
        for down, body in zip(self.down, self.body):
            x = down(x)
            x = x + body(x)
        return self.fc(x.mean(dim=(2, 3)))


class BalancedBatchSampler(Sampler):
    """Draws some objects and as many photographs of each."""

    def __init__(self, labels, seed):
        self.places = {label: np.where(labels == label)[0] for label in np.unique(labels)}
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        while True:
            classes = self.rng.choice(list(self.places), N_CLASSES, replace=False)
            picks = [self.rng.choice(self.places[c], N_SAMPLES, replace=False) for c in classes]
            yield np.concatenate(picks)


class Photographs:
    """Noisy views of a pattern per object."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        patterns = rng.integers(116, 140, (OBJECTS, 1, 3, SIDE, SIDE))
        noise = rng.integers(-90, 90, (OBJECTS, PHOTOS, 3, SIDE, SIDE))
        self.images = (patterns + noise).astype(np.uint8).reshape(-1, 3, SIDE, SIDE)
        self.labels = np.repeat(np.arange(OBJECTS), PHOTOS)

    def take(self, rows):
        images = to_device(self.images[rows])
        return images.float().div_(127.5).sub_(1.0), to_device(self.labels[rows])


def recall_at_one(model, data, rows):
    """Share of photographs whose nearest neighbour shows the same object."""
    model.eval()
    with torch.no_grad():
        images, labels = data.take(rows)
        distances = pdist(model(images)).fill_diagonal_(float("inf"))
        hits = labels[distances.argmin(dim=1)] == labels
    model.train()
    return hits.float().mean().item()


def main():
    torch.manual_seed(0)
    data = Photographs(1)
    sampler = iter(BalancedBatchSampler(data.labels, 2))
    held_out = np.arange(0, len(data.labels), 5)
    model = EmbeddingNet().to(device)
    criterion = OnlineTripletLoss(MARGIN, TripletSelector(MARGIN, hardest_negative))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000, gamma=0.5)
    warm = min(10, STEPS // 2)
    start, last, found = time.perf_counter(), None, 0
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        images, labels = data.take(next(sampler))
        last, count = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        last.backward()
        optimizer.step()
        schedule.step()
        found += count
        if step % 500 == 499:
            recall = recall_at_one(model, data, held_out)
            print(f"step {step + 1} triplets {found / 500:.0f} recall {recall:.3f}")
            found = 0
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
