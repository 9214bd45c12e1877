"""Tags words of sentences; the vocabulary is that of a large corpus."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
WORDS, WIDTH, TAGS, BATCH, LENGTH = 40_000, 100, 17, 16, 40


class Tagger(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, sparse=VARIANT == "b")
        self.lstm = nn.LSTM(WIDTH, hidden, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * hidden, TAGS)

    def forward(self, words):
        hidden, _ = self.lstm(self.embedding(words))
        return self.tags(hidden)


def make_optimizers(model):
    table = list(model.embedding.parameters())
    rest = [*model.lstm.parameters(), *model.tags.parameters()]
    of_table = torch.optim.SparseAdam if VARIANT == "b" else torch.optim.Adam
    return [of_table(table, lr=1e-3), torch.optim.Adam(rest, lr=1e-3)]


def sentences(seed=0):
    g = torch.Generator().manual_seed(seed)
    while True:
        words = (WORDS * torch.rand(BATCH, LENGTH, generator=g).pow(3)).long()
        yield words, words % TAGS


def main():
    torch.manual_seed(0)
    model = Tagger()
    optimizers = make_optimizers(model)
    for step, (words, tags) in enumerate(sentences()):
        if step == 5:
            start = time.perf_counter()
        if step == STEPS:
            break
        scores = model(words)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tags.flatten())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
