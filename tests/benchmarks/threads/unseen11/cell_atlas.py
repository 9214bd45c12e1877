"""Learns a map of cells from the counts of their genes, with a variational autoencoder."""

import os
import time

import numpy as np
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 110))
CELLS, GENES, KINDS, LATENT, BATCH = 1500, 3_000, 12, 10, 64


def make_counts():
    """Few counts in few genes, with programmes of genes for each kind of cell."""
    rng = np.random.default_rng(10)
    level = rng.gamma(0.15, 1.0, (KINDS, GENES))
    depth = rng.lognormal(0, 0.4, (CELLS, 1))
    counts = rng.poisson(level[rng.integers(0, KINDS, CELLS)] * depth)
    return sparse.csr_matrix(counts.astype(np.float32))


class Cells(Dataset):
    def __init__(self, counts):
        self.counts = counts if VARIANT == "a" else counts.toarray()

    def __len__(self):
        return self.counts.shape[0]

    def __getitem__(self, index):
        if VARIANT == "a":
            return self.counts[index].toarray()[0]
        return self.counts[index]


class CellVAE(nn.Module):
    """Encoder of log counts; decoder to the mean and the spread of a negative binomial."""

    def __init__(self, width=1024):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(GENES, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1)
        )
        self.place = nn.Linear(width, 2 * LATENT)
        self.decode = nn.Sequential(nn.Linear(LATENT, width), nn.BatchNorm1d(width), nn.ReLU())
        self.share, self.spread = nn.Linear(width, GENES), nn.Linear(width, GENES)

    def forward(self, counts):
        mean, log_var = self.place(self.encode(torch.log1p(counts))).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        hidden = self.decode(z)
        rate = self.share(hidden).softmax(-1) * counts.sum(1, keepdim=True)
        r = F.softplus(self.spread(hidden)) + 1e-3
        fit = torch.lgamma(counts + r) - torch.lgamma(r) - torch.lgamma(counts + 1)
        fit = fit + r * (r / (r + rate)).log() + counts * (rate / (r + rate) + 1e-8).log()
        kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1)
        return (kl - fit.sum(1)).mean() / GENES


def main():
    torch.manual_seed(10)
    loader = DataLoader(Cells(make_counts()), batch_size=BATCH, shuffle=True, drop_last=True)
    model = CellVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=0.01)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for counts in loader:
            if step == warm:
                start = time.perf_counter()
            loss = model(counts)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
