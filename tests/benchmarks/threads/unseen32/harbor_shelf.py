"""Trains a graph recommender that suggests books of a harbour library to its readers."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1800"))
READERS = int(os.environ.get("READERS", "30000"))
BOOKS = int(os.environ.get("BOOKS", "40000"))
LOANS = int(os.environ.get("LOANS", "1600000"))
WIDTH = int(os.environ.get("WIDTH", "64"))
LAYERS = int(os.environ.get("LAYERS", "3"))
BATCH = int(os.environ.get("BATCH", "8192"))

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_loans(rng):
    readers = rng.integers(0, READERS, LOANS)
    books = (rng.pareto(1.2, LOANS) * BOOKS * 0.05).astype(np.int64) % BOOKS
    books = np.where(rng.random(LOANS) < 0.4, rng.integers(0, BOOKS, LOANS), books)
    pairs = rng.permutation(np.unique(readers * BOOKS + books))
    return pairs // BOOKS, pairs % BOOKS


class ShelfGraph:
    def __init__(self, readers, books):
        source = np.concatenate([readers, books + READERS])
        target = np.concatenate([books + READERS, readers])
        count = READERS + BOOKS
        degree = np.maximum(np.bincount(target, minlength=count), 1).astype(np.float32)
        weight = 1.0 / np.sqrt(degree[source] * degree[target])
        if VARIANT == "a":
            self.source = torch.from_numpy(source).to(device)
            self.target = torch.from_numpy(target).to(device)
            self.weight = torch.from_numpy(weight).to(device)
            return
        order = np.lexsort((source, target))
        starts = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=count))])
        self.matrix = torch.sparse_csr_tensor(
            torch.from_numpy(starts),
            torch.from_numpy(source[order]),
            torch.from_numpy(weight[order]),
            size=(count, count),
        ).to(device)


class MatrixSpread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, matrix):
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx, grad):
        return ctx.matrix @ grad.contiguous(), None


def spread(x, graph):
    if VARIANT == "a":
        message = graph.weight.view(-1, 1) * x.index_select(0, graph.source)
        index = graph.target.view(-1, 1).expand_as(message)
        return torch.zeros_like(x).scatter_add_(0, index, message)
    return MatrixSpread.apply(x, graph.matrix)


class ShelfLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin1 = nn.Linear(WIDTH, WIDTH)
        self.lin2 = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, graph):
        near = spread(x, graph)
        return self.lin1(near + x) + self.lin2(near * x)


class ShelfNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(READERS + BOOKS, WIDTH) * 0.1)
        self.layers = nn.ModuleList(ShelfLayer() for _ in range(LAYERS))

    def forward(self, graph):
        x = self.table
        kept = [x]
        for layer in self.layers:
            x = F.normalize(F.leaky_relu(layer(x, graph), 0.2), dim=1)
            kept.append(x)
        return torch.cat(kept, 1)


def main():
    torch.manual_seed(31)
    readers, books = make_loans(np.random.default_rng(31))
    graph = ShelfGraph(readers, books)
    readers, books = torch.from_numpy(readers).to(device), torch.from_numpy(books).to(device)
    net = ShelfNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        rows = torch.randint(0, readers.shape[0], (BATCH,), device=device)
        other = torch.randint(0, BOOKS, (BATCH,), device=device) + READERS
        final = net(graph)
        who = final.index_select(0, readers.index_select(0, rows))
        liked = final.index_select(0, books.index_select(0, rows) + READERS)
        gap = (who * (liked - final.index_select(0, other))).sum(1)
        loss = F.softplus(-gap).mean() + 1e-5 * who.square().sum(1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - started
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
