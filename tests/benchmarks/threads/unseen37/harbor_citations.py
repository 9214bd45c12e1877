"""Classify the papers of a citation graph by sampled neighbourhoods (GraphSAGE, two layers)."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "900"))
WARM = min(10, STEPS // 2)
PAPERS = 90000
CITED = 12
FANOUT = 4
FEATURES = 48
WIDTH = 64
TOPICS = 16
BATCH = 8192


class PaperOrder(Sampler):
    """A new order of the training papers in each epoch."""

    def __init__(self, size):
        self.size = size
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(torch.randperm(self.size, generator=self.generator).tolist())


class PaperBatches(IterableDataset):
    """The training papers in a new order in each epoch, in batches."""

    def __init__(self, papers):
        self.papers = papers
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self):
        order = torch.randperm(len(self.papers), generator=self.generator)
        for begin in range(0, len(order) - BATCH + 1, BATCH):
            yield self.papers[order[begin : begin + BATCH]]


class NodeCollator:
    """Draws the neighbours of a batch of papers and gathers what the layers need."""

    def __init__(self, cited, features, topics):
        self.cited, self.features, self.topics = cited, features, topics
        self.generator = torch.Generator().manual_seed(6)

    def neighbours(self, nodes):
        picks = torch.randint(0, CITED, (len(nodes), FANOUT), generator=self.generator)
        return self.cited[nodes].gather(1, picks)

    def collate(self, items):
        seeds = items if torch.is_tensor(items) else torch.tensor(items)
        first = self.neighbours(seeds)
        return self.features[seeds], self.features[first.flatten()], self.topics[seeds]


class SageNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Linear(FEATURES, WIDTH)
        self.near = nn.Linear(FEATURES, WIDTH)
        self.mixed = nn.Linear(WIDTH, WIDTH)
        self.topic = nn.Linear(WIDTH, TOPICS)

    def forward(self, own, near):
        near = F.relu(self.near(near)).view(len(own), FANOUT, WIDTH).mean(1)
        hidden = F.relu(self.own(own) + near)
        return self.topic(F.relu(self.mixed(hidden)))


def make_loader(papers, collator):
    if VARIANT == "a":
        return DataLoader(
            papers,
            batch_size=BATCH,
            sampler=PaperOrder(len(papers)),
            drop_last=True,
            collate_fn=collator.collate,
        )
    return DataLoader(PaperBatches(papers), batch_size=None, collate_fn=collator.collate)


def main():
    torch.manual_seed(0)
    cited = torch.randint(0, PAPERS, (PAPERS, CITED))
    topics = torch.randint(0, TOPICS, (PAPERS,))
    features = torch.randn(PAPERS, FEATURES) + F.one_hot(topics, FEATURES)
    papers = torch.randperm(PAPERS)[: PAPERS * 4 // 5]
    loader = make_loader(papers, NodeCollator(cited, features, topics))
    model = SageNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step, start = 0, time.perf_counter()
    while step < STEPS:
        for own, near, topic in loader:
            if step == WARM:
                start = time.perf_counter()
            loss = F.cross_entropy(model(own, near), topic)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    spent = (time.perf_counter() - start) / (STEPS - WARM)
    print(f"loss {loss.item():.5f}")
    print(f"{spent * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
