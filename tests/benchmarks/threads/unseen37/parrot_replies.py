"""Train a small retrieval model that picks the right reply of twenty for a dialogue with a persona."""

import os
import random
import re
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "900"))
WARM = min(10, STEPS // 2)
DIALOGUES = 1200
REPLIES = 3000
CANDIDATES = 20
BATCH = 80
VOCAB = 4000
WIDTH = 96
HIDDEN = 256
RETOK = re.compile(r"\w+|[^\w\s]|\n", re.UNICODE)


def invent_words(rng):
    heads = ["ka", "lo", "mi", "tra", "sen", "vu", "po", "rel", "qui", "dos", "fa", "ner"]
    words = set()
    while len(words) < VOCAB - 2:
        words.add("".join(rng.choice(heads) for _ in range(rng.randint(2, 5))))
    return sorted(words)


def sentence(rng, words, length):
    picked = [words[min(int(rng.paretovariate(0.6)), len(words) - 1)] for _ in range(length)]
    picked[0] = picked[0].capitalize()
    return " ".join(picked) + rng.choice([".", "!", "?", "..."])


class WordBook:
    """Vocabulary of the task, and the way from text to indices."""

    def __init__(self, words):
        self.tok2ind = {"__null__": 0, "__unk__": 1}
        for word in words:
            self.tok2ind[word] = len(self.tok2ind)
        self.known = {} if VARIANT != "a" else None

    def tokenize(self, text):
        text = text.replace("|", " | ").strip().lower()
        return [token for token in RETOK.findall(text) if token != " "]

    def txt2vec(self, text):
        if self.known is None:
            return tuple(self.tok2ind.get(token, 1) for token in self.tokenize(text))
        vector = self.known.get(text)
        if vector is None:
            vector = tuple(self.tok2ind.get(token, 1) for token in self.tokenize(text))
            self.known[text] = vector
        return vector


class ReplyPicker(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCAB, WIDTH, mode="mean")
        self.context = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
        self.reply = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, context, replies):
        asked = self.context(self.words(*context))
        given = self.reply(self.words(*replies)).view(len(asked), CANDIDATES, WIDTH)
        return torch.bmm(given, asked.unsqueeze(2)).squeeze(2) / WIDTH**0.5


def to_bags(vectors):
    flat, offsets = [], []
    for vector in vectors:
        offsets.append(len(flat))
        flat.extend(vector)
    return torch.tensor(flat), torch.tensor(offsets)


def vectorize(book, acts):
    contexts = to_bags([book.txt2vec(act["text"]) for act in acts])
    replies = to_bags([book.txt2vec(text) for act in acts for text in act["candidates"]])
    labels = torch.tensor([act["label"] for act in acts])
    return contexts, replies, labels


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    words = invent_words(rng)
    pool = [sentence(rng, words, rng.randint(8, 16)) for _ in range(REPLIES)]
    acts = []
    for _ in range(DIALOGUES):
        persona = "\n".join("your persona: " + sentence(rng, words, 9) for _ in range(5))
        history = "\n".join(sentence(rng, words, 12) for _ in range(4))
        acts.append(
            {
                "text": persona + "\n" + history,
                "candidates": rng.sample(pool, CANDIDATES),
                "label": rng.randrange(CANDIDATES),
            }
        )
    book = WordBook(words)
    model = ReplyPicker()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        chosen = rng.sample(acts, BATCH)
        contexts, replies, labels = vectorize(book, chosen)
        loss = F.cross_entropy(model(contexts, replies), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = (time.perf_counter() - start) / (STEPS - WARM)
    print(f"loss {loss.item():.5f}")
    print(f"{spent * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
