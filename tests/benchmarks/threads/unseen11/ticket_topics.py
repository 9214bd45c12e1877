"""Sorts short messages to a city's service desk by the office that has to answer them."""

import os
import time
from itertools import chain

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 330))
MESSAGES, WORDS, BATCH = 24_000, 6_000, 1_000
OFFICES = ["roads", "parks", "water", "noise", "permits", "schools", "other"]


class Messages(Dataset):
    """Texts as lists of word numbers: common words, and some that tell the office."""

    def __init__(self):
        rng = np.random.default_rng(12)
        self.offices = rng.integers(0, len(OFFICES), MESSAGES)
        self.texts = []
        for office, length in zip(self.offices, rng.integers(6, 46, MESSAGES), strict=True):
            words = np.minimum(rng.zipf(1.4, length), 4_000)
            told = rng.random(length) < 0.25
            words[told] = 4_001 + office * 280 + rng.integers(0, 280, told.sum())
            self.texts.append(words.tolist())

    def __len__(self):
        return MESSAGES

    def __getitem__(self, index):
        return self.texts[index], int(self.offices[index])


def flatten(texts):
    """One long text of all, as the embedding wants it."""
    if VARIANT == "a":
        return sum(texts, [])
    return list(chain.from_iterable(texts))


def collate(samples):
    texts = [text for text, _ in samples]
    starts = np.cumsum([0] + [len(text) for text in texts[:-1]])
    words = torch.tensor(flatten(texts))
    return words, torch.from_numpy(starts), torch.tensor([office for _, office in samples])


class Sorter(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, width, mode="mean")
        self.body = nn.Sequential(
            nn.Linear(width, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.GELU()
        )
        self.head = nn.Linear(128, len(OFFICES))

    def forward(self, words, starts):
        return self.head(self.body(self.words(words, starts)))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(12)
    loader = DataLoader(Messages(), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate)
    model = Sorter()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    batches = endless(loader)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        words, starts, offices = next(batches)
        loss = F.cross_entropy(model(words, starts), offices)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
