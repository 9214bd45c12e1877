"""Finds the subject of short minutes of a town council, from their words."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
MINUTES, WORDS, LONGEST, BATCH, SUBJECTS = 12_000, 8_000, 120, 96, 12


class Minutes(Dataset):
    """Word numbers of each text: common words, and some that tell the subject."""

    def __init__(self):
        rng = np.random.default_rng(43)
        self.subject = rng.integers(0, SUBJECTS, MINUTES)
        self.texts = []
        for subject, length in zip(self.subject, rng.integers(15, LONGEST, MINUTES), strict=True):
            words = np.minimum(rng.zipf(1.4, length), 4_000)
            told = rng.random(length) < 0.15
            words[told] = 4_001 + subject * 300 + rng.integers(0, 300, told.sum())
            self.texts.append(torch.from_numpy(words))

    def __len__(self):
        return MINUTES

    def __getitem__(self, index):
        return self.texts[index], int(self.subject[index])


class Padder:
    """Texts of a batch as one table, short ones filled with zeros."""

    def __init__(self):
        self.room = torch.zeros(BATCH, LONGEST, dtype=torch.long) if VARIANT == "b" else None

    def __call__(self, samples):
        longest = max(len(text) for text, _ in samples)
        if self.room is None:
            table = torch.zeros(len(samples), longest, dtype=torch.long)
        else:
            table = self.room[: len(samples), :longest].fill_(0)
        for row, (text, _) in zip(table, samples, strict=True):
            row[: len(text)] = text
        return table, torch.tensor([subject for _, subject in samples])


class Reader(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.near = nn.ModuleList([nn.Conv1d(width, 64, size, padding=size // 2) for size in (3, 5)])
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, SUBJECTS))

    def forward(self, table):
        x = self.words(table).transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(x)).amax(2) for conv in self.near], 1))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(43)
    loader = DataLoader(Minutes(), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=Padder())
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    batches = endless(loader)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        table, subjects = next(batches)
        loss = F.cross_entropy(model(table), subjects)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
