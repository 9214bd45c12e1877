"""Trains a classifier that is to hold in new surroundings: features shall not tell an attribute.

Each batch comes from several environments. A penalty compares the features of rows with the same
label and different values of the attribute, by the mean difference of kernels.
"""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3600))
ENVIRONMENTS = 3
ROWS = 4000
COLUMNS = 40
LABELS = 3
VALUES = 4
BATCH = 192
FEATURES = 32


def pair_distances(left, right):
    """Squared distances of all rows of one matrix to all rows of another."""
    left_norm = left.pow(2).sum(dim=-1, keepdim=True)
    right_norm = right.pow(2).sum(dim=-1, keepdim=True)
    product = torch.addmm(right_norm.transpose(-2, -1), left, right.transpose(-2, -1), alpha=-2)
    return product.add_(left_norm).clamp_min_(1e-30)


def gaussian_kernel(left, right, gamma):
    """The kernel of all pairs of rows."""
    if VARIANT == "a":
        distances = pair_distances(left, right)
        kernel = torch.zeros_like(distances)
        kernel.add_(torch.exp(distances.mul(-gamma)))
        return kernel
    distances = torch.cdist(left, right, p=2.0).pow(2)
    return torch.exp(distances.mul(-gamma))


def mean_discrepancy(left, right, gamma):
    """How different two samples are, seen by the kernel."""
    within_left = gaussian_kernel(left, left, gamma).mean()
    within_right = gaussian_kernel(right, right, gamma).mean()
    between = gaussian_kernel(left, right, gamma).mean()
    return within_left + within_right - 2 * between


class Regularization:
    """The penalty on features that depend on the attribute where the label is the same."""

    def __init__(self, gamma):
        self.gamma = gamma

    @staticmethod
    def groups(labels, attribute):
        """The rows of each label, by the value of the attribute."""
        keys = (labels * VALUES + attribute).numpy()
        order = np.argsort(keys, kind="stable")
        edges = np.searchsorted(keys[order], np.arange(LABELS * VALUES + 1))
        rows = torch.from_numpy(order)
        found = [rows[edges[key] : edges[key + 1]] for key in range(LABELS * VALUES)]
        return [found[label * VALUES : (label + 1) * VALUES] for label in range(LABELS)]

    def conditional(self, features, labels, attributes):
        penalty = 0.0
        for part, label, attribute in zip(features, labels, attributes):
            for members in self.groups(label, attribute):
                samples = [part.index_select(0, rows) for rows in members if len(rows) > 1]
                for first in range(len(samples)):
                    for second in range(first + 1, len(samples)):
                        penalty = penalty + mean_discrepancy(samples[first], samples[second], self.gamma)
        return penalty


class CausalModel(nn.Module):
    """A network for the features and a layer for the label."""

    def __init__(self):
        super().__init__()
        self.featurizer = nn.Sequential(
            nn.Linear(COLUMNS, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, FEATURES)
        )
        self.classifier = nn.Linear(FEATURES, LABELS)

    def forward(self, x):
        features = self.featurizer(x)
        return features, self.classifier(torch.relu(features))


class Algorithm:
    """One step: the classification loss of all environments and the penalty."""

    def __init__(self, model, weight=0.1, gamma=0.02):
        self.model = model
        self.weight = weight
        self.regularization = Regularization(gamma)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, weight_decay=1e-5)
        self.logged = {}

    def training_step(self, batches):
        sizes = [len(x) for x, _, _ in batches]
        features, scores = self.model(torch.cat([x for x, _, _ in batches]))
        labels = [y for _, y, _ in batches]
        objective = nn.functional.cross_entropy(scores, torch.cat(labels))
        penalty = self.regularization.conditional(features.split(sizes), labels, [a for _, _, a in batches])
        loss = objective + self.weight * penalty / len(batches)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.logged = {"objective": objective.item(), "penalty": penalty.item()}
        return loss

    @torch.no_grad()
    def accuracy(self, x, labels):
        self.model.eval()
        right = (self.model(x)[1].argmax(1) == labels).float().mean().item()
        self.model.train()
        return right


def make_environment(rng, share):
    """Rows whose label follows some columns, and an attribute that goes with the label by a share."""
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    labels = np.digitize(x[:, :8].sum(1) + rng.standard_normal(ROWS), (-1.2, 1.2))
    attribute = np.where(rng.random(ROWS) < share, labels, rng.integers(0, VALUES, ROWS))
    x[:, 8:12] += 1.5 * np.eye(VALUES, dtype=np.float32)[attribute]
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(labels), torch.from_numpy(attribute))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    training = [make_environment(rng, share) for share in (0.1, 0.2, 0.3)]
    test = make_environment(rng, 0.0).tensors
    streams = []
    for number, data in enumerate(training):
        generator = torch.Generator().manual_seed(number)
        streams.append(endless(DataLoader(data, BATCH, shuffle=True, drop_last=True, generator=generator)))
    algorithm = Algorithm(CausalModel())
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        loss = algorithm.training_step([next(stream) for stream in streams])
        if (step + 1) % 250 == 0:
            print(f"step {step + 1} {algorithm.logged} test {algorithm.accuracy(test[0], test[1]):.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
