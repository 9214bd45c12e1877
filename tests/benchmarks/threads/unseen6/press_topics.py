"""Topics of press articles: word vectors, a recurrent encoder, attention over its states."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1000))
WORDS = int(os.environ.get("WORDS", 120_000))
SIZE, HIDDEN, TOPICS = 100, 96, 40
BATCH, LENGTH = 16, 40


class TopicModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE, sparse=VARIANT == "b")
        self.encoder = nn.GRU(SIZE, HIDDEN, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * HIDDEN, 1)
        self.output = nn.Linear(2 * HIDDEN, TOPICS)

    def forward(self, articles):
        states, _ = self.encoder(self.words(articles))
        weight = self.score(states.tanh()).softmax(1)
        return self.output((weight * states).sum(1))


class Press:
    """Articles whose words follow the law of Zipf, as words do."""

    def __init__(self, count=4000):
        generator = torch.Generator().manual_seed(4)
        odds = 1.0 / torch.arange(1, WORDS + 1)
        self.articles = torch.multinomial(odds, count * LENGTH, replacement=True, generator=generator)
        self.articles = self.articles.view(count, LENGTH)
        self.topics = torch.randint(0, TOPICS, (count,), generator=generator)
        self.generator = generator

    def batches(self):
        while True:
            for rows in torch.randperm(len(self.articles), generator=self.generator).split(BATCH):
                yield self.articles[rows], self.topics[rows]


def train(model, batches, optimizer):
    articles, topics = next(batches)
    loss = F.cross_entropy(model(articles), topics)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    model = TopicModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    batches = Press().batches()
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        loss = train(model, batches, optimizer)
    print(f"loss {loss:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
