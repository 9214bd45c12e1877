"""Embeds the wing patterns of moths so that moths of one species lie close together."""

import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "850"))

SPECIES = 400


class MothWings(Dataset):
    def __init__(self, count, generator):
        shapes = torch.randn(SPECIES, 1, 16, 16, generator=generator)
        self.labels = torch.randint(0, SPECIES, (count,), generator=generator).tolist()
        noise = torch.randn(count, 1, 16, 16, generator=generator)
        self.wings = shapes[self.labels] + noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        wing = self.wings[index]
        if torch.rand(()) < 0.5:
            wing = wing.flip(-1)
        return wing, self.labels[index]


class SpeciesBatches(Sampler):
    """Batches of a few moths each of some species drawn at random."""

    def __init__(self, labels, batch_size, per_species, steps, seed):
        self.ys = labels if VARIANT == "a" else np.array(labels)
        self.species = sorted(set(labels))
        self.per_species = per_species
        self.draws = batch_size // per_species
        self.steps = steps
        self.rng = random.Random(seed)
        self.choice = np.random.default_rng(seed)

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            batch = []
            for species in self.rng.sample(self.species, self.draws):
                members = np.nonzero(np.array(self.ys) == species)[0]
                batch += self.choice.choice(members, size=self.per_species, replace=True).tolist()
            self.rng.shuffle(batch)
            yield batch


class WingNet(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1, stride=2), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1, stride=2), nn.BatchNorm2d(48), nn.ReLU(),
        )  # fmt: skip
        self.project = nn.Linear(48 * 16, size)

    def forward(self, x):
        return F.normalize(self.project(self.features(x).flatten(1)), dim=1)


class ProxyAnchor(nn.Module):
    def __init__(self, size=64, margin=0.1, alpha=16.0):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(SPECIES, size))
        self.margin, self.alpha = margin, alpha

    def forward(self, embedded, labels):
        cosine = embedded @ F.normalize(self.proxies, dim=1).t()
        own = F.one_hot(labels, SPECIES).bool()
        near = torch.exp(-self.alpha * (cosine - self.margin)).masked_fill(~own, 0).sum(0)
        far = torch.exp(self.alpha * (cosine + self.margin)).masked_fill(own, 0).sum(0)
        present = own.any(0).sum()
        return torch.log1p(near).sum() / present + torch.log1p(far).sum() / SPECIES


torch.manual_seed(21)
generator = torch.Generator().manual_seed(22)
moths = MothWings(20000, generator)
batches = SpeciesBatches(moths.labels, batch_size=128, per_species=8, steps=STEPS, seed=23)
loader = DataLoader(moths, batch_sampler=batches)
model, criterion = WingNet(), ProxyAnchor()
optimizer = torch.optim.AdamW(
    [{"params": model.parameters()}, {"params": criterion.parameters(), "lr": 1e-2}], lr=1e-3
)
warm = min(10, STEPS // 2)
for step, (wings, labels) in enumerate(loader):
    if step == warm:
        start = time.perf_counter()
    loss = criterion(model(wings), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 10)
    optimizer.step()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
