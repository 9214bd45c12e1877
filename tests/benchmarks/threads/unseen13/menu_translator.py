"""Translates lines of menus: a recurrent reader and a recurrent writer that looks back at what was read."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 130))
DISHES, WORDS, READ, WRITE, BATCH, WIDTH = 3_000, 1_500, 32, 16, 24, 192


def make_menus():
    """The words of the translation stand for every second word of the line, in turned order."""
    g = torch.Generator().manual_seed(21)
    read = torch.randint(1, WORDS, (DISHES, READ), generator=g)
    write = (read[:, ::2].flip(1) * 7 + 3) % (WORDS - 1) + 1
    return read, write


class Lookback(nn.Module):
    """Additive scores between the state of the writer and all that was read."""

    def __init__(self):
        super().__init__()
        self.of_state = nn.Linear(WIDTH, WIDTH, bias=False)
        self.of_notes = nn.Linear(2 * WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, state, notes, marks=None):
        if marks is None:
            marks = self.of_notes(notes)
        weights = self.score(torch.tanh(self.of_state(state)[:, None] + marks)).softmax(1)
        return (weights * notes).sum(1)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.reader = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.lookback = Lookback()
        self.writer = nn.GRUCell(3 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, read, write):
        notes, last = self.reader(self.words(read))
        state = last.sum(0)
        marks = None if VARIANT == "a" else self.lookback.of_notes(notes)
        before = self.words(F.pad(write[:, :-1], (1, 0)))
        states = []
        for t in range(write.shape[1]):
            seen = self.lookback(state, notes, marks)
            state = self.writer(torch.cat([before[:, t], seen], 1), state)
            states.append(state)
        return self.head(torch.stack(states, 1))


def main():
    torch.manual_seed(21)
    read, write = make_menus()
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(5, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, DISHES, (BATCH,))
        scores = model(read[rows], write[rows])
        loss = F.cross_entropy(scores.flatten(0, 1), write[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
