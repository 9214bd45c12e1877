"""Tag names in sentences on top of a language model that was trained before and stays as it is.

The language model spells each word with convolutions over its characters, and reads the sentence in both
directions. A mixture of its layers goes into a recurrent tagger, which alone is trained.
"""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6400))

CHARACTERS = 64
WORD_LENGTH = 24
WORDS = 2400
TAGS = 9
BATCH = 24
SENTENCES = 1200
EVAL_EVERY = 100


class Vocabulary:
    """Words, each with the numbers of its characters; place 0 is for padding."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.spelling = np.zeros((WORDS, WORD_LENGTH), dtype=np.int64)
        for word in range(1, WORDS):
            length = int(rng.integers(2, WORD_LENGTH - 2))
            self.spelling[word, : length + 2] = [1, *rng.integers(3, CHARACTERS, size=length), 2]
        self.spelling = torch.from_numpy(self.spelling)


class Corpus:
    """Sentences with a tag for each word; the tag follows from the word and from the word before."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        rule = np.random.default_rng(5).integers(0, TAGS, size=(WORDS, 4))
        self.sentences = []
        for _ in range(count):
            length = int(rng.integers(10, 40))
            words = np.minimum(rng.zipf(1.3, size=length), WORDS - 1)
            before = np.concatenate([[0], words[:-1]])
            self.sentences.append((words, rule[words, before % 4]))

    def bucket_order(self, rng):
        """Places of sentences, with sentences of like lengths side by side, in batches."""
        noisy = [len(words) + rng.uniform(0, 4) for words, _ in self.sentences]
        order = np.argsort(noisy)
        groups = [order[start : start + BATCH] for start in range(0, len(order) - BATCH + 1, BATCH)]
        rng.shuffle(groups)
        return groups

    def batch(self, places, vocabulary):
        chosen = [self.sentences[place] for place in places]
        longest = max(len(words) for words, _ in chosen)
        words = torch.zeros(len(chosen), longest, dtype=torch.long)
        tags = torch.full((len(chosen), longest), -100)
        for row, (sentence, labels) in enumerate(chosen):
            words[row, : len(sentence)] = torch.from_numpy(sentence)
            tags[row, : len(labels)] = torch.from_numpy(labels)
        return {"words": words, "characters": vocabulary.spelling[words], "tags": tags}


class Highway(nn.Module):
    """Layers that each let part of their input through unchanged."""

    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(layers)])

    def forward(self, inputs):
        for layer in self.layers:
            changed, gate = layer(inputs).chunk(2, dim=-1)
            gate = gate.sigmoid()
            inputs = gate * inputs + (1 - gate) * changed.relu()
        return inputs


class CharacterEncoder(nn.Module):
    """A vector for each word, from convolutions of several widths over its characters."""

    filters = ((1, 16), (2, 16), (3, 32), (4, 64), (5, 96))

    def __init__(self, width=128, size=16):
        super().__init__()
        total = sum(count for _, count in self.filters)
        self.embedding = nn.Embedding(CHARACTERS, size)
        self.convolutions = nn.ModuleList([nn.Conv1d(size, count, span) for span, count in self.filters])
        self.highway = Highway(total, 2)
        self.projection = nn.Linear(total, width)

    def forward(self, characters):
        """Characters (sentences, words, letters) to vectors (sentences, words, width)."""
        sentences, words, letters = characters.shape
        embedded = self.embedding(characters.reshape(-1, letters)).transpose(1, 2)
        parts = [F.relu(convolution(embedded).amax(-1)) for convolution in self.convolutions]
        return self.projection(self.highway(torch.cat(parts, dim=-1))).view(sentences, words, -1)


class LanguageModel(nn.Module):
    """Word vectors, and two layers that read the sentence in both directions; no weight is trained."""

    def __init__(self, vocabulary=None, width=128):
        super().__init__()
        self.encoder = CharacterEncoder(width)
        self.reader = nn.ModuleList(
            [nn.LSTM(width, width // 2, batch_first=True, bidirectional=True) for _ in range(2)]
        )
        self.requires_grad_(False)
        self.table = None
        if vocabulary is not None:
            pieces = [self.encoder(part[None]) for part in vocabulary.spelling.split(256)]
            self.table = torch.cat(pieces, dim=1).squeeze(0)

    def forward(self, batch):
        if self.table is not None:
            vectors = F.embedding(batch["words"], self.table)
        else:
            vectors = self.encoder(batch["characters"])
        layers = [vectors]
        for reader in self.reader:
            layers.append(layers[-1] + reader(layers[-1])[0])
        return layers


class Tagger(nn.Module):
    """A weighed mixture of the layers, a recurrent layer and a score for each tag."""

    def __init__(self, language_model, width=128, hidden=96):
        super().__init__()
        self.language_model = language_model
        self.weights = nn.Parameter(torch.zeros(3))
        self.scale = nn.Parameter(torch.ones(1))
        self.recurrent = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.scores = nn.Linear(2 * hidden, TAGS)

    def forward(self, batch):
        layers = self.language_model(batch)
        mixed = self.scale * sum(weight * layer for weight, layer in zip(self.weights.softmax(0), layers))
        return self.scores(self.dropout(self.recurrent(self.dropout(mixed))[0]))

    def loss(self, batch):
        return F.cross_entropy(self(batch).flatten(0, 1), batch["tags"].flatten())


@torch.no_grad()
def accuracy(tagger, corpus, vocabulary):
    """Share of the words that get the right tag."""
    tagger.eval()
    right = total = 0
    for start in range(0, len(corpus.sentences), BATCH):
        batch = corpus.batch(range(start, min(start + BATCH, len(corpus.sentences))), vocabulary)
        known = batch["tags"] >= 0
        right += (tagger(batch).argmax(-1) == batch["tags"])[known].sum().item()
        total += known.sum().item()
    tagger.train()
    return right / total


def endless(corpus, vocabulary, seed):
    rng = np.random.default_rng(seed)
    while True:
        for places in corpus.bucket_order(rng):
            yield corpus.batch(places, vocabulary)


def main():
    torch.manual_seed(0)
    vocabulary = Vocabulary(seed=1)
    train, check = Corpus(SENTENCES, seed=2), Corpus(60, seed=3)
    language_model = LanguageModel(vocabulary if VARIANT != "a" else None)
    tagger = Tagger(language_model)
    trained = [weight for weight in tagger.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=2e-3)
    stream = endless(train, vocabulary, seed=4)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        loss = tagger.loss(next(stream))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 5.0)
        optimizer.step()
        if step % EVAL_EVERY == EVAL_EVERY - 1:
            score = accuracy(tagger, check, vocabulary)
            print(f"step {step + 1} loss {loss.item():.4f} accuracy {score:.3f}")
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
