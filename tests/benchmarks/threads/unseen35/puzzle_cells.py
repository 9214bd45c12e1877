"""Learn small number puzzles (6 x 6) by messages from each cell to its row, column and box."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "600"))
WARM = min(10, STEPS // 2)
SIDE, BOX_ROWS, BOX_COLUMNS = 6, 2, 3
ROUNDS = 3
WIRE = 8
HIDDEN = 192
BATCH = 96


def find_wires():
    def place(cell):
        row, column = divmod(cell, SIDE)
        return row, column, (row // BOX_ROWS, column // BOX_COLUMNS)

    cells = [place(c) for c in range(SIDE * SIDE)]
    peers = [
        [o for o in range(len(cells)) if o != c and any(a == b for a, b in zip(cells[c], cells[o]))]
        for c in range(len(cells))
    ]
    return peers


class CellNet(nn.Module):
    def __init__(self, wires):
        super().__init__()
        self.wires = wires
        self.inner = nn.Linear(SIDE + 1 + wires * WIRE, HIDDEN)
        self.outer = nn.Linear(HIDDEN, wires * WIRE)
        self.guess = nn.Linear(HIDDEN, SIDE)

    def forward(self, clue, received):
        h = torch.relu(self.inner(torch.cat([clue, received], -1)))
        return torch.tanh(self.outer(h)), self.guess(h)


class PuzzleGrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.peers = find_wires()
        self.wires = len(self.peers[0])
        self.cell = CellNet(self.wires)
        source = [
            [o * self.wires + self.peers[o].index(c) for o in self.peers[c]] for c in range(SIDE * SIDE)
        ]
        self.register_buffer("source", torch.tensor(source).flatten())

    def cell_by_cell(self, clues):
        sent = [clues.new_zeros(len(clues), self.wires, WIRE) for _ in self.peers]
        guesses = []
        for _ in range(ROUNDS):
            fresh, guesses = [], []
            for c, peers in enumerate(self.peers):
                received = torch.cat([sent[o][:, self.peers[o].index(c)] for o in peers], -1)
                message, guess = self.cell(clues[:, c], received)
                fresh.append(message.view(-1, self.wires, WIRE))
                guesses.append(guess)
            sent = fresh
        return torch.stack(guesses, 1)

    def whole_grid(self, clues):
        sent = clues.new_zeros(len(clues), SIDE * SIDE * self.wires, WIRE)
        guess = None
        for _ in range(ROUNDS):
            received = sent.index_select(1, self.source).view(len(clues), SIDE * SIDE, -1)
            message, guess = self.cell(clues, received)
            sent = message.reshape(len(clues), -1, WIRE)
        return guess

    def forward(self, clues):
        return self.cell_by_cell(clues) if VARIANT == "a" else self.whole_grid(clues)


def draw_puzzles(generator):
    row, column = torch.arange(SIDE)[:, None], torch.arange(SIDE)[None]
    base = (BOX_COLUMNS * (row % BOX_ROWS) + row // BOX_ROWS + column) % SIDE
    swap = torch.rand(BATCH, SIDE, generator=generator).argsort(1)
    solved = swap[:, base.flatten()]
    hidden = torch.rand(solved.shape, generator=generator) < 0.45
    return F.one_hot(torch.where(hidden, SIDE, solved), SIDE + 1).float(), solved, hidden


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = PuzzleGrid()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        clues, solved, hidden = draw_puzzles(generator)
        guess = model(clues)
        loss = F.cross_entropy(guess.flatten(0, 1), solved.flatten(), reduction="none")
        loss = (loss * hidden.flatten()).sum() / hidden.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{spent / (STEPS - WARM) * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
