"""Names the plants on the photos of an app, among thousands of kinds, from what a camera network saw."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
PHOTOS, SEEN, KINDS, BATCH = 20_000, 160, 4_000, 128


class Album(Dataset):
    """What was seen on a photo: 160 numbers, which lie close together for photos of one kind."""

    def __init__(self):
        g = torch.Generator().manual_seed(81)
        middle = torch.randn(KINDS, SEEN, generator=g)
        self.kind = (torch.rand(PHOTOS, generator=g).square() * KINDS).long()
        self.seen = middle[self.kind] + torch.randn(PHOTOS, SEEN, generator=g)

    def __len__(self):
        return PHOTOS

    def __getitem__(self, index):
        return self.seen[index], self.kind[index]


class Score:
    """How often the right kind is the first, and among the first five, over the last steps."""

    def __init__(self, part=0.05):
        self.part, self.first, self.five = part, 0.0, 0.0

    def add(self, scores, kinds):
        if VARIANT == "a":
            best = scores.sort(1, descending=True)[1][:, :5]
        else:
            best = scores.topk(5, 1)[1]
        right = (best == kinds[:, None]).float()
        self.first += self.part * (right[:, 0].mean().item() - self.first)
        self.five += self.part * (right.sum(1).mean().item() - self.five)


class Namer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(SEEN, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.1),
        )
        self.kinds = nn.Linear(width, KINDS)

    def forward(self, seen):
        return self.kinds(self.body(seen))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(81)
    album = Album()
    sampler = BatchSampler(RandomSampler(album), BATCH, drop_last=True)
    batches = endless(DataLoader(album, sampler=sampler, batch_size=None))
    model, score = Namer(), Score()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        seen, kinds = next(batches)
        scores = model(seen)
        loss = F.cross_entropy(scores, kinds, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        score.add(scores.detach(), kinds)
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}, first {score.first:.3f}, five {score.five:.3f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
