"""Sentence embeddings from pairs that mean the same."""

import os
import random
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
PAIRS, WORDS, BATCH, WIDTH = 480, 60, 16, 96
LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


class WordPieces:
    """Cuts words into the longest pieces that are known, from the left."""

    def __init__(self, rng):
        pieces = {letter for letter in LETTERS} | {"##" + letter for letter in LETTERS}
        while len(pieces) < 6000:
            piece = "".join(rng.choices(LETTERS, k=rng.randint(2, 4)))
            pieces.add(rng.choice(["", "##"]) + piece)
        self.ids = {piece: i + 1 for i, piece in enumerate(sorted(pieces))}

    def cut(self, word):
        start, found = 0, []
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.ids:
                    found.append(self.ids[piece])
                    start = end
                    break
        return found

    def encode(self, text):
        return [i for word in text.lower().split() for i in self.cut(word)][:256]


class SentencePairs(Dataset):
    def __init__(self, tokenizer, rng):
        self.tokenizer = tokenizer
        words = ["".join(rng.choices(LETTERS, k=rng.randint(4, 14))) for _ in range(3000)]
        self.texts = [tuple(" ".join(rng.choices(words, k=WORDS)) for _ in range(2)) for _ in range(PAIRS)]
        if VARIANT == "b":
            self.tokens = [tuple(map(tokenizer.encode, pair)) for pair in self.texts]

    def __len__(self):
        return PAIRS

    def __getitem__(self, i):
        if VARIANT == "b":
            return self.tokens[i]
        return tuple(self.tokenizer.encode(text) for text in self.texts[i])


def smart_batching(pairs):
    return [pad_sequence([torch.tensor(t) for t in side], True) for side in zip(*pairs, strict=True)]


class Encoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(size, WIDTH, padding_idx=0)
        self.head = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, tokens):
        return nn.functional.normalize(self.head(self.embed(tokens).mean(1)), dim=-1)


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    tokenizer = WordPieces(rng)
    loader = DataLoader(
        SentencePairs(tokenizer, rng), batch_size=BATCH, shuffle=True, collate_fn=smart_batching
    )
    model = Encoder(len(tokenizer.ids) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while step < STEPS:
        for left, right in loader:
            if step == 5:
                start = time.perf_counter()
            scores = 20 * model(left) @ model(right).T
            loss = nn.functional.cross_entropy(scores, torch.arange(len(scores)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
