"""Trains a tagger that finds amounts and ingredients in the sentences of recipes."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1500"))
BATCH = int(os.environ.get("BATCH", "48"))
WORDS = int(os.environ.get("WORDS", "4000"))
WIDTH = int(os.environ.get("WIDTH", "64"))
HIDDEN = int(os.environ.get("HIDDEN", "32"))
TAGS = 5


class Token:
    """A word of a sentence, with the vectors that embedding layers have given to it."""

    def __init__(self, number, tag):
        self.number = number
        self.tag = tag
        self.vectors = {}

    def set_embedding(self, name, vector):
        self.vectors[name] = vector

    def get_embedding(self, names):
        vectors = [self.vectors[name] for name in names]
        if VARIANT == "b" and len(vectors) == 1:
            return vectors[0]
        return torch.cat(vectors, dim=0)


class Sentence:
    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens)


class WordEmbeddings(nn.Module):
    name = "words"

    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)

    def embed(self, sentences):
        numbers = [token.number for sentence in sentences for token in sentence.tokens]
        rows = self.table(torch.tensor(numbers)).unbind(0)
        place = 0
        for sentence in sentences:
            for token in sentence.tokens:
                token.set_embedding(self.name, rows[place])
                place += 1


class Tagger(nn.Module):
    def __init__(self, embeddings, width, hidden, tags):
        super().__init__()
        self.embeddings = embeddings
        self.context = nn.Conv1d(width, hidden, 3, padding=1)
        self.head = nn.Linear(hidden, tags)

    def sentence_tensor(self, sentences):
        names = [self.embeddings.name]
        longest = max(len(sentence) for sentence in sentences)
        filler = torch.zeros(self.embeddings.table.embedding_dim)
        vectors = []
        for sentence in sentences:
            vectors.extend(token.get_embedding(names) for token in sentence.tokens)
            vectors.extend([filler] * (longest - len(sentence)))
        return torch.stack(vectors).view(len(sentences), longest, -1)

    def forward(self, sentences):
        self.embeddings.embed(sentences)
        x = self.sentence_tensor(sentences)
        x = torch.relu(self.context(x.transpose(1, 2))).transpose(1, 2)
        scores = self.head(x)
        flat = torch.cat([scores[row, : len(s)] for row, s in enumerate(sentences)])
        tags = torch.tensor([token.tag for s in sentences for token in s.tokens])
        return F.cross_entropy(flat, tags)


def make_recipes(count):
    lengths = torch.randint(10, 25, (count,)).tolist()
    recipes = []
    for length in lengths:
        numbers = torch.randint(0, WORDS, (length,)).tolist()
        recipes.append(Sentence([Token(n, n % TAGS) for n in numbers]))
    return recipes


def main():
    torch.manual_seed(17)
    recipes = make_recipes(600)
    tagger = Tagger(WordEmbeddings(WORDS, WIDTH), WIDTH, HIDDEN, TAGS)
    optimizer = torch.optim.SGD(tagger.parameters(), lr=0.3)
    picks = torch.randint(0, len(recipes), (STEPS, BATCH)).tolist()

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        chosen = [recipes[i] for i in sorted(set(picks[step]))]
        loss = tagger(chosen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
