"""Similarity learning of type annotations: an anchor, one point of the same type, one of another."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3600))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

POINTS = 3000 if SMALL else 240_000
TYPES = 60 if SMALL else 1500
VOCAB = 400 if SMALL else 8000
BATCH = 16 if SMALL else 256
HIDDEN = 32 if SMALL else 384
OUT = 32 if SMALL else 512
WORKERS = 2 if SMALL else 4
LOG_EVERY = 100
EVAL_EVERY = 500


def make_corpus(seed=0):
    """Names, code context and visible hints of each annotated place, with its type as the label."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, TYPES + 1) ** 0.8
    labels = rng.choice(TYPES, size=POINTS, p=weights / weights.sum())
    labels[: 2 * TYPES] = np.repeat(np.arange(TYPES), 2)
    centre = rng.integers(1, VOCAB, size=(TYPES, 8))
    names = rng.integers(1, VOCAB, size=(POINTS, 31))
    context = rng.integers(1, VOCAB, size=(POINTS, 21))
    names[:, :8] = centre[labels]
    context[:, 3:11] = centre[labels]
    hints = rng.random((POINTS, 64), dtype=np.float32)
    return (
        torch.from_numpy(names),
        torch.from_numpy(context),
        torch.from_numpy(hints),
        torch.from_numpy(labels),
    )


class TripletDataset(Dataset):
    """Gives (anchor, similar, different); the draws are fixed by the seed."""

    def __init__(self, names, context, hints, labels, seed=1):
        self.data = TensorDataset(names, context, hints)
        self.labels = labels
        self.draws = torch.rand(
            len(labels), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        self.triplets = None
        if VARIANT != "a":
            self.triplets = self.prepare()

    def __len__(self):
        return len(self.labels)

    def prepare(self):
        """The same choice for all anchors, type by type."""
        labels, draws = self.labels.numpy(), self.draws.numpy()
        table = np.empty((len(labels), 2), dtype=np.int64)
        order = np.argsort(labels, kind="stable")
        bounds = np.searchsorted(labels[order], np.arange(TYPES + 1))
        for kind in range(TYPES):
            members = order[bounds[kind] : bounds[kind + 1]]
            n = len(members)
            pick = (draws[members, 0] * (n - 1)).astype(np.int64)
            pick += pick >= np.arange(n)
            table[members, 0] = members[pick]
            k = (draws[members, 1] * (len(labels) - n)).astype(np.int64)
            table[members, 1] = k + np.searchsorted(members - np.arange(n), k, side="right")
        return torch.from_numpy(table)

    def choose(self, index):
        if self.triplets is not None:
            similar, different = self.triplets[index].tolist()
            return similar, different
        u, v = self.draws[index].tolist()
        mask = self.labels == self.labels[index]
        mask[index] = False
        same = mask.nonzero()
        similar = same[int(u * len(same))].item()
        mask = self.labels != self.labels[index]
        other = mask.nonzero()
        different = other[int(v * len(other))].item()
        return similar, different

    def __getitem__(self, index):
        similar, different = self.choose(index)
        return self.data[index], self.data[similar], self.data[different], self.labels[index]


class TypeEncoder(nn.Module):
    """Two recurrent readers and the hints, projected to one point in the space of types."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 100)
        self.read_names = nn.LSTM(100, HIDDEN, batch_first=True, bidirectional=True)
        self.read_context = nn.LSTM(100, HIDDEN, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.0)
        self.project = nn.Linear(4 * HIDDEN + 64, OUT)

    def forward(self, names, context, hints):
        a, _ = self.read_names(self.embed(names))
        b, _ = self.read_context(self.embed(context))
        joined = torch.cat([a[:, -1], b[:, -1], hints], dim=1)
        return self.project(self.drop(joined))


def to_device(group):
    return [t.to(device, non_blocking=True) for t in group]


@torch.no_grad()
def evaluate(model, corpus, count=512):
    """Share of points whose nearest neighbour is of the same type."""
    model.eval()
    names, context, hints, labels = (t[:count].to(device) for t in corpus)
    points = model(names, context, hints)
    distance = torch.cdist(points, points)
    distance.fill_diagonal_(float("inf"))
    hit = (labels[distance.argmin(1)] == labels).float().mean()
    model.train()
    return hit.item()


def batches(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    corpus = make_corpus()
    dataset = TripletDataset(*corpus)
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=device == "cuda",
        persistent_workers=True,
    )
    model = TypeEncoder().to(device)
    criterion = nn.TripletMarginLoss(margin=2.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.7)
    running = torch.zeros((), device=device)
    warm = min(10, STEPS // 2)
    stream = batches(loader)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        anchor, similar, different, _ = next(stream)
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(*to_device(anchor)), model(*to_device(similar)), model(*to_device(different)))
        loss.backward()
        optimizer.step()
        schedule.step()
        running += loss.detach()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1} mean loss {running.item() / LOG_EVERY:.4f}")
            running.zero_()
        if (step + 1) % EVAL_EVERY == 0:
            print(f"step {step + 1} nearest neighbour {evaluate(model, corpus):.3f}")
        last = loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
