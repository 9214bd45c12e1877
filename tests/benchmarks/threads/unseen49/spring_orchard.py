"""Train a model of how cells answer a perturbation, set by set, from an expression store on disk."""

from __future__ import annotations

import functools
import os
import tempfile
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2400))
GENES, SENTENCE, TYPES, PERTURBATIONS, PLATES = 512, 16, 3, 12, 8


class ChunkedArray:
    """A one-dimensional array on disk, in compressed chunks of equal length; the last one read is kept."""

    def __init__(self, path: str, dtype: str, chunk: int):
        self.path, self.dtype, self.chunk = path, np.dtype(dtype), chunk
        self.places: list[tuple[int, int]] = []
        self.file = None
        self.last = (-1, None)

    def write(self, values: np.ndarray) -> None:
        with open(self.path, "wb") as file:
            for begin in range(0, len(values), self.chunk):
                packed = zlib.compress(values[begin : begin + self.chunk].astype(self.dtype).tobytes(), 1)
                self.places.append((file.tell(), len(packed)))
                file.write(packed)

    def read_chunk(self, number: int) -> np.ndarray:
        if self.last[0] != number:
            self.file = self.file or open(self.path, "rb")
            place, size = self.places[number]
            self.file.seek(place)
            self.last = (number, np.frombuffer(zlib.decompress(self.file.read(size)), self.dtype))
        return self.last[1]

    def __getitem__(self, where: slice) -> np.ndarray:
        first, end = where.start // self.chunk, max(where.start, where.stop - 1) // self.chunk
        parts = [self.read_chunk(number) for number in range(first, end + 1)]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined[where.start - first * self.chunk : where.stop - first * self.chunk]


def write_store(folder: str, cells: int) -> dict:
    """Writes the counts of made-up cells in rows of non-zero numbers; returns the store and its labels."""
    rng = np.random.default_rng(9)
    labels = {
        "cell_type": rng.integers(TYPES, size=cells),
        "gene": np.where(rng.random(cells) < 0.2, 0, rng.integers(1, PERTURBATIONS, size=cells)),
        "batch": rng.integers(PLATES, size=cells),
    }
    base = rng.gamma(0.5, 1.0, size=(TYPES, GENES))
    effect = np.exp(
        0.8 * rng.standard_normal((PERTURBATIONS, GENES)) * (rng.random((PERTURBATIONS, GENES)) < 0.1)
    )
    effect[0] = 1.0
    counts = rng.poisson(base[labels["cell_type"]] * effect[labels["gene"]]).astype(np.float32)
    rows, columns = np.nonzero(counts)
    store = {"indptr": np.searchsorted(rows, np.arange(cells + 1)), **labels}
    for name, values, dtype in (("data", counts[rows, columns], "<f4"), ("indices", columns, "<i4")):
        store[name] = ChunkedArray(os.path.join(folder, name), dtype, chunk=16384)
        store[name].write(values)
    return store


class PerturbationDataset(Dataset):
    """Perturbed cells, each with a control cell of its type and batch."""

    def __init__(self, store: dict):
        self.store = store
        self.controls = {}
        for cell_type in range(TYPES):
            for plate in range(PLATES):
                same = (store["cell_type"] == cell_type) & (store["batch"] == plate)
                self.controls[cell_type, plate] = np.nonzero(same & (store["gene"] == 0))[0]
        self.perturbed = np.nonzero(store["gene"] != 0)[0]
        self.rng = np.random.default_rng(12)
        if VARIANT != "a":
            self.fetch_gene_expression = functools.lru_cache(maxsize=10000)(self.fetch_gene_expression)

    def fetch_gene_expression(self, index: int) -> torch.Tensor:
        """One cell's counts as a dense row, on a log scale."""
        begin, end = int(self.store["indptr"][index]), int(self.store["indptr"][index + 1])
        row = torch.zeros(GENES)
        columns = torch.from_numpy(self.store["indices"][begin:end].astype(np.int64))
        row[columns] = torch.from_numpy(self.store["data"][begin:end].copy())
        return row.log1p()

    def __len__(self) -> int:
        return len(self.perturbed)

    def __getitem__(self, place: int) -> dict:
        index = int(self.perturbed[place])
        cell_type, plate = int(self.store["cell_type"][index]), int(self.store["batch"][index])
        control = int(self.rng.choice(self.controls[cell_type, plate]))
        return {
            "pert_cell_emb": self.fetch_gene_expression(index),
            "ctrl_cell_emb": self.fetch_gene_expression(control),
            "pert": int(self.store["gene"][index]),
            "batch": plate,
        }


class PerturbationBatchSampler(Sampler):
    """Sentences of cells with one type and one perturbation; a batch holds a few sentences."""

    def __init__(self, dataset: PerturbationDataset, sentences: int):
        self.dataset, self.sentences = dataset, sentences
        self.rng = np.random.default_rng(6)
        store, cells = dataset.store, dataset.perturbed
        self.groups = store["cell_type"][cells] * PERTURBATIONS + store["gene"][cells]

    def __iter__(self):
        found = []
        for group in np.unique(self.groups):
            members = self.rng.permutation(np.nonzero(self.groups == group)[0])
            whole = len(members) // SENTENCE * SENTENCE
            found.extend(members[:whole].reshape(-1, SENTENCE))
        order = self.rng.permutation(len(found))
        for begin in range(0, len(order) - self.sentences + 1, self.sentences):
            yield np.concatenate([found[i] for i in order[begin : begin + self.sentences]]).tolist()


class StateModel(nn.Module):
    """Attention within a sentence, from control cells and a perturbation to perturbed cells."""

    def __init__(self, dim: int = 128):
        super().__init__()
        self.cell_in = nn.Linear(GENES, dim)
        self.pert_embed = nn.Embedding(PERTURBATIONS, dim)
        self.batch_embed = nn.Embedding(PLATES, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, batch_first=True, norm_first=True)
        self.mix = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cell_out = nn.Linear(dim, GENES)

    def forward(self, batch: dict) -> torch.Tensor:
        h = (
            self.cell_in(batch["ctrl_cell_emb"])
            + self.pert_embed(batch["pert"])
            + self.batch_embed(batch["batch"])
        )
        h = self.mix(h.view(-1, SENTENCE, h.shape[-1]))
        return F.relu(self.cell_out(h) + batch["ctrl_cell_emb"].view(-1, SENTENCE, GENES))


def energy_distance(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Distance between two sets of cells, for each sentence."""
    cross = torch.cdist(found, wanted).mean((1, 2))
    return 2 * cross - torch.cdist(found, found).mean((1, 2)) - torch.cdist(wanted, wanted).mean((1, 2))


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dataset = PerturbationDataset(write_store(folder, cells=6000))
        loader = DataLoader(dataset, batch_sampler=PerturbationBatchSampler(dataset, sentences=4))
        model = StateModel()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-3)
        warm, step, epoch = min(10, STEPS // 2), 0, 0
        while step < STEPS:
            shift = 0.0
            for batch in loader:
                if step == warm:
                    start = time.perf_counter()
                found = model(batch)
                wanted = batch["pert_cell_emb"].view_as(found)
                loss = energy_distance(found, wanted).mean() + 0.1 * F.mse_loss(found.mean(1), wanted.mean(1))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                step += 1
                if step % 10 == 0:
                    shift = (found.mean(1) - wanted.mean(1)).abs().mean().item()
                if step == STEPS:
                    break
            epoch += 1
            print(f"epoch {epoch} loss {loss.item():.4f} shift {shift:.4f}")
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
