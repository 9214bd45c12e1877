"""Prototypical network on a table of measured features: episodes of few classes, few examples of each."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))

ROWS = 150_000
FEATURES = 64
CLASSES = 12
WAY = 4
SUPPORT = 32
QUERIES = 96
REPORT_EVERY = 250


class FeatureTable:
    """Rows of features around a centre for each class, with noise that overlaps."""

    def __init__(self):
        centres = torch.randn(CLASSES, FEATURES)
        self.labels = torch.randint(0, CLASSES, (ROWS,))
        self.rows = centres[self.labels] + 2.5 * torch.randn(ROWS, FEATURES)

    def rows_by_class(self):
        """For each class the numbers of its rows, in an order drawn by chance."""
        order = torch.randperm(ROWS)
        shuffled = self.labels[order]
        return {label: order[shuffled == label] for label in range(CLASSES)}


class EmbeddingNetwork(nn.Module):
    """Maps features to the space in which distances are taken."""

    def __init__(self, width=512, size=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, size),
        )

    def forward(self, rows):
        return self.body(rows)


class EpisodeMaker:
    """Draws classes, and for each of them the support and the queries."""

    def __init__(self, table):
        self.table = table
        self.by_class = table.rows_by_class()
        self.offsets = {label: 0 for label in range(CLASSES)}

    def reshuffle(self, label):
        """Begin anew with the rows of a class, in another order."""
        numbers = self.by_class[label]
        self.by_class[label] = numbers[torch.randperm(len(numbers))]
        self.offsets[label] = 0

    def generate_support(self, label):
        """Features of the support of one class."""
        begin = self.offsets[label]
        if VARIANT == "a":
            rows_of_class = self.table.rows[self.by_class[label]]
            return rows_of_class[begin : begin + SUPPORT]
        return self.table.rows[self.by_class[label][begin : begin + SUPPORT]]

    def generate_episode(self):
        """Out: support (way, support, features), queries (way * queries, features) and their labels."""
        chosen = torch.randperm(CLASSES)[:WAY].tolist()
        support, queries, labels = [], [], []
        for place, label in enumerate(chosen):
            if self.offsets[label] + SUPPORT + QUERIES > len(self.by_class[label]):
                self.reshuffle(label)
            support.append(self.generate_support(label))
            begin = self.offsets[label] + SUPPORT
            if VARIANT == "a":
                class_rows = self.table.rows[self.by_class[label]]
                class_labels = torch.Tensor([place] * len(self.by_class[label]))
                queries.append(class_rows[begin : begin + QUERIES])
                labels.append(class_labels[begin : begin + QUERIES])
            else:
                queries.append(self.table.rows[self.by_class[label][begin : begin + QUERIES]])
                labels.append(torch.full((QUERIES,), float(place)))
            self.offsets[label] += SUPPORT + QUERIES
        return torch.stack(support), torch.cat(queries), torch.cat(labels).long()


class PrototypeLearner(nn.Module):
    """Network, prototypes by the mean, and distances that know each class's spread."""

    def __init__(self):
        super().__init__()
        self.network = EmbeddingNetwork()
        self.scale = nn.Parameter(torch.zeros(()))

    def prototypes(self, support):
        """Mean and spread of each class. In: (way, support, features)."""
        way, count, features = support.shape
        embedded = self.network(support.reshape(way * count, features)).reshape(way, count, -1)
        centres = embedded.mean(1)
        spread = (embedded - centres[:, None]).square().mean((1, 2))
        return centres, spread

    def forward(self, support, queries):
        centres, spread = self.prototypes(support)
        embedded = self.network(queries)
        distances = (embedded[:, None] - centres[None]).square().sum(-1) / (1.0 + spread)[None]
        return -self.scale.exp() * distances


class RunningMeans:
    """Means of what was reported since the last time."""

    def __init__(self):
        self.sums = {}
        self.count = 0

    def add(self, **values):
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1

    def pop(self):
        """Out: a line of text; begins anew."""
        line = ", ".join(f"{name} {total / self.count:.4f}" for name, total in self.sums.items())
        self.sums, self.count = {}, 0
        return line


@torch.no_grad()
def evaluate(learner, support, queries, labels):
    """Share of right answers in an episode that was set aside."""
    learner.eval()
    right = (learner(support, queries).max(1).indices == labels).float().mean().item()
    learner.train()
    return right


def main():
    torch.manual_seed(0)
    maker = EpisodeMaker(FeatureTable())
    aside = maker.generate_episode()
    learner = PrototypeLearner()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(STEPS, 1))
    means = RunningMeans()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        support, queries, labels = maker.generate_episode()
        scores = learner(support, queries)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        means.add(loss=loss.item(), right=(scores.max(1).indices == labels).float().mean().item())
        if step % REPORT_EVERY == REPORT_EVERY - 1:
            print(f"step {step + 1}: {means.pop()}, aside {evaluate(learner, *aside):.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
