"""Sequence tagger whose validation metric (edit distance of decoded words) runs on each training batch.

Planted: host-bound (the line is marked). --fixed: the metric every 50 steps.
"""

import logging
import sys
import time

import torch
from torch import nn

logging.basicConfig(level=logging.WARNING)
log = logging.getLogger(__name__)
TRUTH = "host-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
ALPHABET = "abcdefghijklmnopqrstuvwxyz "


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        left, row[0] = row[0], i
        for j, cb in enumerate(b, 1):
            left, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, left + (ca != cb))
    return row[-1]


def error_rate(logits, targets):
    guesses = ["".join(ALPHABET[c] for c in line) for line in logits.argmax(-1).tolist()]
    truths = ["".join(ALPHABET[c] for c in line) for line in targets.tolist()]
    return sum(distance(g, t) for g, t in zip(guesses, truths)) / sum(map(len, truths))  # planted


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(40, 32, bidirectional=True, batch_first=True)
        self.out = nn.Linear(64, len(ALPHABET))

    def forward(self, x):
        return self.out(self.lstm(x)[0])


def main():
    tagger = Tagger().to(DEV)
    opt = torch.optim.RMSprop(tagger.parameters(), 1e-3)
    for step in range(130):
        if step == 10:
            t0 = time.perf_counter()
        x = torch.randn(16, 60, 40, device=DEV)
        y = torch.randint(0, len(ALPHABET), (16, 60), device=DEV)
        logits = tagger(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not FIXED or step % 50 == 0:
            log.info("error rate %.3f", error_rate(logits.detach(), y))
    print(f"step_ms={(time.perf_counter() - t0) * 1000 / 120:.3f}")


if __name__ == "__main__":
    main()
