"""Finds leaks in small nets of water pipes from pressures: a network over batches of such nets."""

import os
import time
import warnings

import numpy as np
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

warnings.simplefilter("ignore", UserWarning)
VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 520))
NETS, GAUGES, BATCH = 2500, 6, 128


def to_torch(matrix):
    matrix = matrix.tocsr().astype(np.float32)
    crow, col = (torch.from_numpy(x.astype(np.int64)) for x in (matrix.indptr, matrix.indices))
    return torch.sparse_csr_tensor(crow, col, torch.from_numpy(matrix.data), matrix.shape)


def make_nets():
    """Nodes on a plane joined to near ones; width, slope and bend of the pipes are matrices of each net."""
    rng = np.random.default_rng(47)
    nets = []
    for _ in range(NETS):
        place = rng.random((rng.integers(12, 28), 2))
        near = sparse.coo_matrix((way := np.linalg.norm(place[:, None] - place, axis=2)) < 0.32)
        one, other = near.row, near.col
        width = sparse.coo_matrix((1 / (0.2 + way[one, other]), (one, other)), near.shape)
        slope = sparse.coo_matrix((place[one, 0] - place[other, 0], (one, other)), near.shape)
        width = sparse.diags(1 / np.asarray(width.sum(1))[:, 0]) @ width
        bend = sparse.coo_matrix((np.abs(place[one, 1] - place[other, 1]), (one, other)), near.shape)
        leak = rng.random(len(place)) < 0.1
        seen = rng.standard_normal((len(place), GAUGES)) + 1.5 * (width @ leak)[:, None]
        seen[:, :2] += np.stack([slope @ leak, bend @ leak], 1)
        pipes = [to_torch(matrix) for matrix in (width, slope, bend)]
        nets.append((pipes, torch.from_numpy(seen).float(), torch.from_numpy(leak).float()))
    return nets


def join_by_entries(matrices):
    """One matrix with the given ones on its diagonal."""
    places, values, rows, columns = [], [], 0, 0
    for matrix in matrices:
        entries = matrix.to_sparse_coo().coalesce()
        place = entries.indices().clone()
        place[0] += rows
        place[1] += columns
        places.append(place)
        values.append(entries.values())
        rows, columns = rows + matrix.shape[0], columns + matrix.shape[1]
    joined = torch.sparse_coo_tensor(torch.cat(places, 1), torch.cat(values), (rows, columns))
    return joined.coalesce().to_sparse_csr()


def join_by_rows(matrices):
    """The same matrix."""
    starts, places, values, entries, columns = [torch.tensor([0])], [], [], 0, 0
    for matrix in matrices:
        starts.append(matrix.crow_indices()[1:] + entries)
        places.append(matrix.col_indices() + columns)
        values.append(matrix.values())
        entries, columns = entries + len(values[-1]), columns + matrix.shape[1]
    return torch.sparse_csr_tensor(*map(torch.cat, (starts, places, values)), (columns, columns))


def join_nets(nets):
    join = join_by_entries if VARIANT == "a" else join_by_rows
    pipes, seen, leak = zip(*nets, strict=True)
    return [join(kind) for kind in zip(*pipes, strict=True)], torch.cat(seen), torch.cat(leak)


class LeakFinder(nn.Module):
    def __init__(self, size=72, depth=2):
        super().__init__()
        self.first, self.head = nn.Linear(GAUGES, size), nn.Linear(size, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(depth))
        lines = [nn.ModuleList(nn.Linear(size, size) for _ in range(4)) for _ in range(depth)]
        self.lines = nn.ModuleList(lines)

    def forward(self, seen, pipes):
        x = self.first(seen)
        for norm, (own, *along) in zip(self.norms, self.lines, strict=True):
            y = norm(x)
            flow = own(y)
            for kind, line in zip(pipes, along, strict=True):
                flow = flow + torch.sparse.mm(kind, line(y))
            x = x + F.gelu(flow)
        return self.head(x)[:, 0]


def main():
    torch.manual_seed(47)
    loader = DataLoader(make_nets(), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=join_nets)
    model = LeakFinder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for pipes, seen, leak in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.binary_cross_entropy_with_logits(model(seen, pipes), leak)
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
