"""Predicts in which assays a compound is active, from its hashed substructures."""

import os
import time

import numpy as np
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
COMPOUNDS, BITS, ASSAYS, BATCH = 12_000, 8_192, 400, 256


def make_screen():
    """Fingerprints of about 60 bits, and a few measured assays for each compound."""
    rng = np.random.default_rng(3)
    series = rng.integers(0, 150, COMPOUNDS)
    scaffold = rng.integers(0, BITS, (150, 40))
    rows, columns = [], []
    for compound in range(COMPOUNDS):
        bits = np.unique(np.concatenate([scaffold[series[compound]], rng.integers(0, BITS, 25)]))
        rows.append(np.full(len(bits), compound))
        columns.append(bits)
    rows, columns = np.concatenate(rows), np.concatenate(columns)
    x = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (COMPOUNDS, BITS))
    measured = np.repeat(np.arange(COMPOUNDS), 12)
    assay = rng.integers(0, ASSAYS, len(measured))
    active = np.where((series[measured] * 7 + assay) % 11 < 3, 1.0, -1.0).astype(np.float32)
    y = sparse.csr_matrix((active, (measured, assay)), (COMPOUNDS, ASSAYS))
    y.data = np.sign(y.data)
    return x, y


class Screen(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return self.x.shape[0]

    def __getitem__(self, index):
        if VARIANT == "a":
            x, y = self.x[index], self.y[index]
            return {"bits": x.indices, "assays": y.indices, "active": y.data}
        bits = slice(self.x.indptr[index], self.x.indptr[index + 1])
        found = slice(self.y.indptr[index], self.y.indptr[index + 1])
        return {
            "bits": self.x.indices[bits],
            "assays": self.y.indices[found],
            "active": self.y.data[found],
        }


def collate(samples):
    """Bits of all compounds in a row with their starts; row, column and value of each measurement."""
    sizes = np.array([len(s["bits"]) for s in samples])
    rows = np.repeat(np.arange(len(samples)), [len(s["assays"]) for s in samples])
    return {
        "bits": torch.from_numpy(np.concatenate([s["bits"] for s in samples]).astype(np.int64)),
        "starts": torch.from_numpy(np.cumsum(sizes) - sizes),
        "rows": torch.from_numpy(rows),
        "assays": torch.from_numpy(np.concatenate([s["assays"] for s in samples]).astype(np.int64)),
        "active": torch.from_numpy(np.concatenate([s["active"] for s in samples]) > 0).float(),
    }


class ActivityNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.trunk = nn.EmbeddingBag(BITS, width, mode="sum")
        self.body = nn.Sequential(
            nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(width, ASSAYS)

    def forward(self, bits, starts):
        return self.head(self.body(self.trunk(bits, starts)))


def main():
    torch.manual_seed(3)
    loader = DataLoader(Screen(*make_screen()), batch_size=BATCH, shuffle=True, collate_fn=collate)
    model = ActivityNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for batch in loader:
            if step == warm:
                start = time.perf_counter()
            scores = model(batch["bits"], batch["starts"])[batch["rows"], batch["assays"]]
            loss = F.binary_cross_entropy_with_logits(scores, batch["active"])
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
