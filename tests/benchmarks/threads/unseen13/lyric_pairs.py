"""Learns vectors of song lines so that rated pairs of lines come into their rated order."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
LINES, WORDS, LENGTH, BATCH, WIDTH = 8_000, 6_000, 6, 2048, 64
SHARPNESS = 20.0


def make_lines():
    """Lines of words about a theme; two lines are alike as far as their themes are."""
    g = torch.Generator().manual_seed(8)
    theme = torch.rand(LINES, generator=g)
    centre = (theme * (WORDS - 400)).long()
    words = centre[:, None] + torch.randint(0, 400, (LINES, LENGTH), generator=g)
    return words, theme


def rate(first, second, g):
    """Marks of the listeners, from 0 to 5 in steps of a fifth."""
    close = 5 - 8 * (first - second).abs() + 0.5 * torch.randn(len(first), generator=g)
    return (close.clamp(0, 5) * 5).round() / 5


class LineEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.body = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, lines):
        x = self.words(lines)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2).relu()
        return F.normalize(self.body(x.mean(1)), dim=-1)


def order_loss(closeness, marks):
    """log(1 + sum of exp(s_i - s_j) over all i, j of which j has the higher mark)."""
    scores = SHARPNESS * closeness
    if VARIANT == "a":
        gaps = scores[:, None] - scores[None, :]
        wrong = (marks[:, None] < marks[None, :]).float()
        gaps = (gaps - (1 - wrong) * 1e12).view(-1)
        return torch.logsumexp(torch.cat([torch.zeros(1), gaps]), 0)
    marks, place = marks.sort()
    scores = scores[place]
    above = torch.searchsorted(marks, marks, right=True)
    tails = torch.logcumsumexp(-scores.flip(0), 0).flip(0)
    has = above < len(marks)
    terms = scores[has] + tails[above[has]]
    return torch.logsumexp(torch.cat([torch.zeros(1), terms]), 0)


def main():
    torch.manual_seed(8)
    g = torch.Generator().manual_seed(9)
    words, theme = make_lines()
    encoder = LineEncoder()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        first = torch.randint(0, LINES, (BATCH,), generator=g)
        second = torch.randint(0, LINES, (BATCH,), generator=g)
        marks = rate(theme[first], theme[second], g)
        left, right = encoder(words[first]), encoder(words[second])
        loss = order_loss((left * right).sum(-1), marks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
