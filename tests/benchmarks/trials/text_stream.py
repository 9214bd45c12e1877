"""Byte-pair-like encoding of a text stream in an IterableDataset with one worker, gradient accumulation.

Planted: input-bound (one worker cannot keep up). --fixed: a cheap encoding.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

TRUTH = "input-bound"
CHEAP = "--fixed" in sys.argv
TEXT = "the quick brown fox jumps over the lazy dog and runs away from it " * 12
MERGES = [
    "th",
    "he",
    "qu",
    "ck",
    "ow",
    "ox",
    "um",
    "ps",
    "ov",
    "er",
    "la",
    "zy",
    "an",
    "nd",
    "ru",
    "aw",
    "ay",
]


class Stream(IterableDataset):
    def __iter__(self):
        n = 0
        while True:
            n += 1
            if CHEAP:
                yield torch.tensor(list(TEXT.encode()[:200]))
                continue
            tokens = list(TEXT[n % 60 :])
            for merge in MERGES:  # quadratic, as first versions are
                i = 0
                while i < len(tokens) - 1:
                    if tokens[i] + tokens[i + 1] == merge:
                        tokens[i : i + 2] = [merge]
                    i += 1
            yield torch.tensor([sum(map(ord, t)) % 256 for t in tokens[:200]])


def run():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        nn.Embedding(256, 32), nn.Flatten(), nn.Linear(200 * 32, 64), nn.ReLU(), nn.Linear(64, 256)
    )
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = iter(DataLoader(Stream(), batch_size=8, num_workers=1))
    for step in range(80):
        if step == 15:
            begin = time.perf_counter()
        optimizer.zero_grad()
        for _ in range(2):
            tokens = next(loader).to(device)
            loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0]) / 2
            loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print(f"step_ms={(time.perf_counter() - begin) * 1000 / 65:.3f}")


if __name__ == "__main__":
    run()
