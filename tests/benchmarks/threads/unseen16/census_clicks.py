"""Who answers the letter? A factorisation machine with a deep part over a census of households."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 8192))
WIDTH = int(os.environ.get("WIDTH", 2048))
FIELDS = int(os.environ.get("FIELDS", 96))
SIZE = 16
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tables_of(counts, size, scale):
    tables = nn.ModuleList([nn.Embedding(count, size) for count in counts])
    for table in tables:
        nn.init.normal_(table.weight, std=scale)
    return tables


class FieldTerms(nn.Module):
    """First and second order of every field."""

    def __init__(self, counts):
        super().__init__()
        self.first = tables_of(counts, 1, 0.01)
        self.second = tables_of(counts, SIZE, 0.05)

    def forward(self, codes, values):
        first = [table(codes[:, i]) * values[:, i, None] for i, table in enumerate(self.first)]
        second = [table(codes[:, i]) * values[:, i, None] for i, table in enumerate(self.second)]
        return torch.cat(first, 1), torch.stack(second, 1)


class CensusTerms(nn.Module):
    """First and second order of the whole answer."""

    def __init__(self, counts):
        super().__init__()
        first, second = tables_of(counts, 1, 0.01), tables_of(counts, SIZE, 0.05)
        self.first = nn.Embedding.from_pretrained(torch.cat([t.weight.data for t in first]), freeze=False)
        self.second = nn.Embedding.from_pretrained(torch.cat([t.weight.data for t in second]), freeze=False)
        counts = torch.tensor(counts)
        self.register_buffer("before", counts.cumsum(0) - counts)

    def forward(self, codes, values):
        codes = codes + self.before
        first = self.first(codes)[..., 0] * values
        return first, self.second(codes) * values[..., None]


class DeepMachine(nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.lookup = FieldTerms(counts) if VARIANT == "a" else CensusTerms(counts)
        self.deep = nn.Sequential(
            nn.Linear(len(counts) * SIZE, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, codes, values):
        first, second = self.lookup(codes, values)
        pairs = 0.5 * (second.sum(1).square() - second.square().sum(1)).sum(1)
        return first.sum(1) + pairs + self.deep(second.flatten(1))[:, 0] + self.bias


def census(counts, rows):
    """Coded answers, how sure they are, and whether the household replied."""
    codes = torch.stack([(torch.rand(rows) ** 2 * count).long() for count in counts], 1)
    values = 0.5 + 0.5 * torch.rand(rows, len(counts))
    odds = ((codes[:, ::3] % 3 == 0).float() - 0.5).sum(1) / 4
    return codes.to(device), values.to(device), (torch.sigmoid(odds) > torch.rand(rows)).float().to(device)


def main():
    torch.manual_seed(11)
    counts = [20 + 37 * i % 1500 for i in range(FIELDS)]
    model = DeepMachine(counts).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    codes, values, replied = census(counts, 32 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 32 * BATCH, (step % 32 + 1) * BATCH)
        scores = model(codes[rows], values[rows])
        loss = F.binary_cross_entropy_with_logits(scores, replied[rows])
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
