"""Who owed what to whom: relations between words of guild charters, from all pairs of words."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 3))
LENGTH = int(os.environ.get("LENGTH", 180))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 16))
WORDS, RELATIONS = 9000, 7
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Pairs(nn.Module):
    """A state for each pair of a word and a later one (or itself)."""

    def __init__(self, width):
        super().__init__()
        self.join = nn.Linear(2 * width, width)

    def forward(self, x):
        n = x.shape[1]
        if VARIANT == "b":
            first, second = torch.triu_indices(n, n, device=x.device)
            both = torch.cat([x.index_select(1, first), x.index_select(1, second)], 2)
            return torch.tanh(self.join(both))
        states = []
        for i in range(n):
            later = x[:, i:]
            guide = x[:, i].unsqueeze(1).repeat(1, n - i, 1)
            states.append(torch.tanh(self.join(torch.cat([guide, later], 2))))
        return torch.cat(states, 1)


class CharterModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            max(1, WIDTH // 64),
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.pairs = Pairs(WIDTH)
        self.relation = nn.Linear(WIDTH, RELATIONS)

    def forward(self, words):
        x = self.layers(self.words(words) + self.place.weight)
        return self.relation(self.pairs(x))


def charters(count):
    words = torch.randint(0, WORDS, (count, LENGTH))
    first, second = torch.triu_indices(LENGTH, LENGTH)
    related = (words[:, first] % 50 == words[:, second] % 50) & (first != second)
    relations = torch.where(related, 1 + words[:, first] % (RELATIONS - 1), 0)
    return words.to(device), relations.to(device)


def main():
    torch.manual_seed(19)
    model = CharterModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=device.type == "cuda")
    words, relations = charters(16 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 16 * BATCH, (step % 16 + 1) * BATCH)
        scores = model(words[rows])
        loss = F.cross_entropy(scores.flatten(0, 1), relations[rows].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
