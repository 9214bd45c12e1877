"""Train a digit classifier with active learning.

A small convolutional network with dropout learns from the labelled part of a pool. Every so often the
network says which unlabelled pictures it is least sure of, an oracle labels them, and training goes on
with the larger set.
"""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6400))

POOL = 7000
CLASSES = 10
BATCH = 32
FIRST = 1600
PER_ROUND = 120
ROUND_STEPS = 150


class Pictures(Dataset):
    """Grey pictures of ten shapes, with noise, kept in memory as bytes."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        shapes = np.random.default_rng(7).normal(size=(CLASSES, 7, 7)).repeat(4, axis=1).repeat(4, axis=2)
        self.targets = rng.integers(0, CLASSES, size=count)
        pictures = shapes[self.targets] * 9 + 128 + rng.normal(scale=45, size=(count, 28, 28))
        self.pictures = np.clip(pictures, 0, 255).astype(np.uint8)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        picture = torch.from_numpy(self.pictures[index]).float().div_(255).sub_(0.5).unsqueeze(0)
        return picture, int(self.targets[index])


class ActiveSet(Dataset):
    """The labelled part of a data set; the round in which each picture was labelled is kept in a map."""

    def __init__(self, source, last_rounds=-1):
        if last_rounds == 0 or last_rounds < -1:
            raise ValueError("last_rounds must be positive, or -1 for all")
        self.source = source
        self.last_rounds = last_rounds
        self.labelled_map = np.zeros(len(source), dtype=np.int64)
        self._kept = (-1, None)

    @property
    def current_round(self):
        return int(self.labelled_map.max())

    def training_indices(self):
        """Places, in the whole data set, of the pictures to train on in this round."""
        current = self.current_round
        if VARIANT != "a" and self._kept[0] == current:
            return self._kept[1]
        oldest = 0 if self.last_rounds == -1 else max(0, current - self.last_rounds)
        indices = [index for index, value in enumerate(self.labelled_map) if value > oldest]
        self._kept = (current, indices)
        return indices

    def unlabelled_indices(self):
        return np.flatnonzero(self.labelled_map == 0)

    def label(self, indices):
        """Mark pictures of the whole data set as labelled, as a new round."""
        self.labelled_map[indices] = self.current_round + 1

    def __len__(self):
        return len(self.training_indices())

    def __getitem__(self, index):
        return self.source[self.training_indices()[index]]


class Network(nn.Module):
    """Two convolutions and two dense layers; dropout stays on to draw from the posterior."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 20, 5)
        self.second = nn.Conv2d(20, 50, 5)
        self.dense = nn.Linear(50 * 4 * 4, 500)
        self.last = nn.Linear(500, CLASSES)

    def forward(self, pictures):
        hidden = F.max_pool2d(F.relu(self.first(pictures)), 2)
        hidden = F.max_pool2d(F.relu(self.second(hidden)), 2)
        hidden = F.dropout(hidden.flatten(1), 0.25, training=True)
        hidden = F.relu(self.dense(hidden))
        return self.last(F.dropout(hidden, 0.5, training=True))


def information_gain(logits):
    """Mutual information of the answer and the weights, from draws (draws, pictures, classes)."""
    probabilities = logits.softmax(-1)
    mean = probabilities.mean(0)
    whole = -(mean * mean.clamp_min(1e-9).log()).sum(-1)
    parts = -(probabilities * probabilities.clamp_min(1e-9).log()).sum(-1).mean(0)
    return whole - parts


@torch.no_grad()
def choose(network, active, rng, count, draws=6):
    """The pictures of a part of the pool on which the draws of the network differ most."""
    candidates = rng.permutation(active.unlabelled_indices())[:384]
    pictures = torch.stack([active.source[index][0] for index in candidates])
    logits = torch.stack([network(pictures) for _ in range(draws)])
    best = information_gain(logits).topk(min(count, len(candidates))).indices
    return candidates[best.numpy()]


@torch.no_grad()
def accuracy(network, pictures, targets, draws=4):
    votes = torch.stack([network(pictures).softmax(-1) for _ in range(draws)]).mean(0)
    return (votes.argmax(1) == targets).float().mean().item()


class Journal:
    """Keeps the loss of training and the accuracy of each round."""

    def __init__(self):
        self.rows = []
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total += value
        self.count += 1

    def close_round(self, step, labelled, score):
        mean = self.total / max(self.count, 1)
        self.rows.append((step, labelled, mean, score))
        self.total, self.count = 0.0, 0
        print(f"step {step} labelled {labelled} mean loss {mean:.4f} accuracy {score:.3f}")


def batches(active, generator):
    """Batches without end from the pictures labelled so far."""
    loader = DataLoader(active, batch_size=BATCH, shuffle=True, drop_last=True, generator=generator)
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    active = ActiveSet(Pictures(POOL, seed=1))
    active.label(rng.permutation(POOL)[:FIRST])
    held_out = Pictures(400, seed=2)
    check_pictures = torch.stack([held_out[index][0] for index in range(len(held_out))])
    check_targets = torch.as_tensor(held_out.targets)

    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(STEPS, 1))
    journal = Journal()
    generator = torch.Generator().manual_seed(3)
    stream = batches(active, generator)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        if step and step % ROUND_STEPS == 0:
            score = accuracy(network, check_pictures, check_targets)
            journal.close_round(step, int((active.labelled_map > 0).sum()), score)
            if len(active.unlabelled_indices()) > PER_ROUND:
                active.label(choose(network, active, rng, PER_ROUND))
                stream = batches(active, generator)
        pictures, targets = next(stream)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(network(pictures), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        journal.add(loss.item())
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
