"""Trains a GraphSAGE network on the nodes of a large graph, with sampled neighbours.

The graph is held by an engine that answers queries: neighbours of nodes and features of nodes. An
encoder of two rounds joins each node with the mean of the neighbours that were drawn for it.
"""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4800))
NODES = 400000
DEGREE = 10
COLUMNS = 32
LABELS = 10
BATCH = 160
FANOUTS = (10, 5)
WIDTH = 256


class Engine:
    """The graph, with its rows of neighbours and its features."""

    def __init__(self, rng):
        degrees = rng.integers(3, 2 * DEGREE, NODES)
        self.starts = np.concatenate([[0], np.cumsum(degrees)])
        self.ends = rng.integers(0, NODES, self.starts[-1])
        self.labels = rng.integers(0, LABELS, NODES)
        centres = rng.standard_normal((LABELS, COLUMNS)).astype(np.float32)
        noise = rng.standard_normal((NODES, COLUMNS)).astype(np.float32)
        self.table = centres[self.labels] + 2 * noise
        self.rng = np.random.default_rng(1)

    def sample_neighbours(self, nodes, count):
        first = self.starts[nodes]
        size = self.starts[nodes + 1] - first
        picks = (self.rng.random((len(nodes), count)) * size[:, None]).astype(np.int64)
        return self.ends[first[:, None] + picks]

    def features(self, nodes):
        return torch.from_numpy(self.table[nodes])


class MeanAggregator(nn.Module):
    """Joins a node with the mean of its neighbours."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.around = nn.Linear(inputs, outputs, bias=False)

    def forward(self, own, neighbours):
        return torch.relu(self.own(own) + self.around(neighbours.mean(1)))


class SageEncoder(nn.Module):
    """Two rounds of aggregation over the drawn neighbours of the nodes of a batch."""

    def __init__(self, engine):
        super().__init__()
        self.engine = engine
        self.project = nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH))
        self.first = MeanAggregator(WIDTH, WIDTH)
        self.second = MeanAggregator(WIDTH, WIDTH)

    def query(self, nodes):
        """The neighbours of the nodes, their neighbours, and the features of all of them."""
        near = self.engine.sample_neighbours(nodes, FANOUTS[0])
        inner = np.concatenate([nodes, near.ravel()])
        far = self.engine.sample_neighbours(inner, FANOUTS[1])
        everything = np.concatenate([inner, far.ravel()])
        if VARIANT == "a":
            return {"inner": len(inner), "features": self.engine.features(everything), "places": None}
        unique, places = np.unique(everything, return_inverse=True)
        features = self.engine.features(unique)
        return {"inner": len(inner), "features": features, "places": torch.from_numpy(places)}

    def forward(self, context, count):
        states = self.project(context["features"])
        if context["places"] is not None:
            states = states.index_select(0, context["places"])
        inner = context["inner"]
        states = self.first(states[:inner], states[inner:].view(inner, FANOUTS[1], WIDTH))
        return self.second(states[:count], states[count:].view(count, FANOUTS[0], WIDTH))


class SupervisedGraphSage(nn.Module):
    """The encoder, a layer for the labels and the metric."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.labels = nn.Linear(WIDTH, LABELS)

    def forward(self, context, labels):
        scores = self.labels(self.encoder(context, len(labels)))
        return nn.functional.cross_entropy(scores, labels), scores

    @staticmethod
    def right(scores, labels):
        return (scores.argmax(1) == labels).float().mean()


class Meter:
    """Means of numbers over a window of steps."""

    def __init__(self, window=100):
        self.window = window
        self.values = []

    def add(self, value):
        self.values.append(value)
        del self.values[: -self.window]

    def mean(self):
        return float(torch.stack(self.values).mean())


@torch.no_grad()
def evaluate(model, nodes):
    """The share of right labels of some held nodes."""
    model.eval()
    labels = torch.from_numpy(model.encoder.engine.labels[nodes])
    _, scores = model(model.encoder.query(nodes), labels)
    model.train()
    return model.right(scores, labels).item()


def main():
    torch.manual_seed(0)
    engine = Engine(np.random.default_rng(0))
    model = SupervisedGraphSage(SageEncoder(engine))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    held = np.arange(512)
    sampler = RandomSampler(range(512, NODES), generator=torch.Generator().manual_seed(1))
    batches = BatchSampler(sampler, BATCH, drop_last=True)
    meter = Meter()
    warm = min(10, STEPS // 2)
    step = 0
    while step < STEPS:
        for batch in batches:
            if step == warm:
                start = time.perf_counter()
            nodes = np.asarray(batch) + 512
            labels = torch.from_numpy(engine.labels[nodes])
            loss, scores = model(model.encoder.query(nodes), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            meter.add(model.right(scores.detach(), labels))
            step += 1
            if step % 250 == 0:
                print(f"step {step} right {meter.mean():.3f} held {evaluate(model, held):.3f}")
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
