"""Text classifier; raw strings are tokenized in collate_fn, each time anew.

Planted: input-bound (the line is marked). --fixed: the same training without it.
"""

import os
import random
import re
import sys
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(0)
WORDS = ["w%d" % i for i in range(5000)]
VOCAB = {w: i + 1 for i, w in enumerate(WORDS)}


def tokenize(text):
    return [VOCAB.get(t, 0) for t in re.findall(r"\w+|[^\w\s]", text.lower())]


class Reviews(Dataset):
    def __init__(self, n=4000):
        self.texts = [" ".join(random.choices(WORDS, k=random.randint(100, 300))) for _ in range(n)]
        self.labels = [random.randint(0, 1) for _ in range(n)]
        self.ids = [torch.tensor(tokenize(t)) for t in self.texts] if FIXED else None

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return (self.ids[i] if FIXED else self.texts[i]), self.labels[i]


def collate(batch):
    xs = [b[0] if FIXED else torch.tensor(tokenize(b[0])) for b in batch]  # planted
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), torch.tensor([b[1] for b in batch])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(5001, 64)
        self.fc = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        return self.fc(self.emb(x))


def main():
    model = Net().to(DEV)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Reviews(), batch_size=64, shuffle=True, collate_fn=collate)
    n, t0 = 0, 0.0
    for epoch in range(6):
        for x, y in loader:
            if n == 30:
                t0 = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x.to(DEV)), y.to(DEV))
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
    print(f"step_ms={(time.perf_counter() - t0) * 1000 / (n - 30):.3f}")


if __name__ == "__main__":
    main()
