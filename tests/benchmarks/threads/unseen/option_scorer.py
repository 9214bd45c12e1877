"""Ranks a fixed list of intents for what a customer wrote."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 80))
WORDS, WIDTH, OPTIONS, BATCH, ASKED, WORDED = 2000, 128, 16, 8, 96, 7


class Encoder(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.layers(self.embed(tokens)).mean(1)


class OptionCache:
    def __init__(self, limit=64):
        self.limit, self.kept = limit, {}

    def get(self, tokens, compute):
        key = hash(tokens.numpy().tobytes())
        if key not in self.kept:
            if len(self.kept) == self.limit:
                self.kept.pop(next(iter(self.kept)))
            self.kept[key] = compute(tokens)
        return self.kept[key]


class FrozenTransformerScorer(nn.Module):
    def __init__(self, rank=64):
        super().__init__()
        self.encoder = Encoder().requires_grad_(False).eval()
        self.question = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, rank))
        self.option = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, rank))
        self.cache = OptionCache()

    @torch.no_grad()
    def encode(self, tokens):
        return self.encoder(tokens)

    def forward(self, questions, options):
        asked = self.question(self.encode(questions))
        if VARIANT == "a":
            pooled = self.encode(options.flatten(0, 1)).view(*options.shape[:2], WIDTH)
        else:
            pooled = torch.stack([self.cache.get(row, self.encode) for row in options])
        return torch.einsum("br,bor->bo", asked, self.option(pooled))


def main():
    torch.manual_seed(0)
    model = FrozenTransformerScorer()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    intents = torch.randint(1, WORDS, (OPTIONS, WORDED))
    questions = torch.randint(1, WORDS, (3000, ASKED))
    answers = torch.randint(0, OPTIONS, (3000,))
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(questions), (BATCH,))
        options = intents.expand(BATCH, -1, -1)
        loss = nn.functional.cross_entropy(model(questions[rows], options), answers[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
