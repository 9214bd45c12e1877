"""Ranks replies: every other reply of the batch is a wrong one."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
WORDS, WIDTH, BATCH, LENGTH = 3000, 64, 512, 12


class BiEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, WIDTH, mode="mean")
        self.context = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))
        self.reply = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH))

    def forward(self, text, cands):
        return self.context(self.words(text)) @ self.reply(self.words(cands)).T


class Ranker:
    def __init__(self):
        self.model = BiEncoder()
        self.optimizer = torch.optim.Adamax(self.model.parameters(), lr=1e-3)
        self.metrics = {"loss": 0.0, "rank": 0.0, "correct": 0, "examples": 0}

    def count(self, scores, labels):
        if VARIANT == "b":
            own = scores.gather(1, labels[:, None])
            ranks = (scores > own).sum(1)
            self.metrics["rank"] += (1 + ranks).sum().item()
            self.metrics["correct"] += (ranks == 0).sum().item()
            return
        _, ranks = scores.sort(1, descending=True)
        for b in range(len(labels)):
            rank = (ranks[b] == labels[b]).nonzero().item()
            self.metrics["rank"] += 1 + rank
            self.metrics["correct"] += int(rank == 0)

    def train_step(self, text, cands, replies):
        self.optimizer.zero_grad()
        scores = self.model(text, cands)
        labels = torch.arange(len(text))
        loss = nn.functional.cross_entropy(scores, labels)
        loss.backward()
        self.optimizer.step()
        self.metrics["loss"] += loss.item() * len(text)
        self.metrics["examples"] += len(text)
        with torch.no_grad():
            self.count(scores, labels)
            best = scores.argmax(1).tolist()
        return [replies[i] for i in best]

    def report(self):
        seen = self.metrics["examples"]
        return {key: value / seen for key, value in self.metrics.items() if key != "examples"}


def main():
    torch.manual_seed(0)
    agent = Ranker()
    text = torch.randint(0, WORDS, (5000, LENGTH))
    said = torch.randint(0, WORDS, (5000, LENGTH))
    lines = [f"reply {i}" for i in range(5000)]
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(text), (BATCH,))
        agent.train_step(text[rows], said[rows], [lines[i] for i in rows.tolist()])
    print({key: round(value, 3) for key, value in agent.report().items()})
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
