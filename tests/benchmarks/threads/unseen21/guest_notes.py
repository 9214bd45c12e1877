"""Reads what guests of a hotel wrote into its book, and guesses the stars they gave."""

import os
import random
import re
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 190))
NOTES, BATCH, STARS = 1600, 24, 5
PIECES = re.compile(r"\w+|[^\w\s]")


def make_notes():
    """Notes of made-up words, some of which go along with few or many stars."""
    chance = random.Random(18)
    parts = ["ba", "ne", "lo", "mi", "ru", "ta", "so", "vi", "ke", "du"]
    words = ["".join(chance.choices(parts, k=chance.randint(1, 4))) for _ in range(3000)]
    notes, stars = [], []
    for _ in range(NOTES):
        star = chance.randrange(STARS)
        usual = chance.choices(words, k=chance.randint(40, 90))
        telling = chance.choices(words[star * 40 : star * 40 + 40], k=12)
        mixed = usual + telling
        chance.shuffle(mixed)
        notes.append(" ".join(w.capitalize() + "," if chance.random() < 0.1 else w for w in mixed) + ".")
        stars.append(star)
    return notes, stars


class Reader:
    """Cuts a note into pieces and numbers them."""

    def __init__(self, notes):
        pieces = sorted({piece for note in notes for piece in PIECES.findall(note.lower())})
        self.number = {piece: n + 1 for n, piece in enumerate(pieces)}

    def __call__(self, note):
        return torch.tensor([self.number.get(piece, 0) for piece in PIECES.findall(note.lower())])


class Notes(Dataset):
    def __init__(self, notes, stars, reader):
        self.notes = notes if VARIANT == "a" else [reader(note) for note in notes]
        self.stars, self.reader = stars, reader

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, index):
        note = self.notes[index]
        return self.reader(note) if VARIANT == "a" else note, self.stars[index]


def collate(batch):
    notes, stars = zip(*batch, strict=True)
    return pad_sequence(notes, batch_first=True), torch.tensor(stars)


class StarNet(nn.Module):
    def __init__(self, pieces, width=128):
        super().__init__()
        self.embed = nn.Embedding(pieces, width, padding_idx=0)
        self.recall = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.weigh, self.head = nn.Linear(2 * width, 1), nn.Linear(2 * width, STARS)

    def forward(self, notes):
        x, _ = self.recall(self.embed(notes))
        weight = self.weigh(x)[..., 0].masked_fill(notes == 0, -1e9).softmax(-1)
        return self.head((weight[..., None] * x).sum(1))


def main():
    torch.manual_seed(18)
    notes, stars = make_notes()
    reader = Reader(notes)
    loader = DataLoader(Notes(notes, stars, reader), batch_size=BATCH, shuffle=True, collate_fn=collate)
    model = StarNet(len(reader.number) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for batch, wanted in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.cross_entropy(model(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
