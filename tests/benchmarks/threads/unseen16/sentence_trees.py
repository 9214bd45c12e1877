"""Questions about recipes, sorted into twelve topics by a gated graph network over their parse trees."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
BATCH = int(os.environ.get("BATCH", 160))
WIDTH = int(os.environ.get("WIDTH", 512))
ROUNDS = int(os.environ.get("ROUNDS", 8))
TOPICS, VECTOR = 12, 300
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tree:
    """Words of one sentence or of several, with the edges between them."""

    def __init__(self, words, edges, sizes):
        self.words, self.edges, self.sizes = words, edges, sizes

    def to(self, where):
        return Tree(self.words.to(where), self.edges.to(where), self.sizes.to(where))

    def union(self, other):
        words = torch.cat([self.words, other.words])
        edges = torch.cat([self.edges, other.edges + len(self.words)], 1)
        return Tree(words, edges, torch.cat([self.sizes, other.sizes]))


def to_batch(trees):
    if VARIANT == "a":
        batch = trees[0]
        for tree in trees[1:]:
            batch = batch.union(tree)
        return batch
    sizes = torch.cat([tree.sizes for tree in trees])
    before = (sizes.cumsum(0) - sizes).tolist()
    edges = torch.cat([tree.edges + n for tree, n in zip(trees, before, strict=True)], 1)
    return Tree(torch.cat([tree.words for tree in trees]), edges, sizes)


def collate(pairs):
    trees, topics = zip(*pairs, strict=True)
    return to_batch(trees), torch.tensor(topics)


class GatedGraph(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(VECTOR, WIDTH)
        self.down, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cell = nn.GRUCell(2 * WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 1)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, TOPICS))

    def forward(self, tree):
        x = torch.tanh(self.start(tree.words))
        parent, child = tree.edges
        for _ in range(ROUNDS):
            down = torch.zeros_like(x).index_add(0, child, self.down(x).index_select(0, parent))
            up = torch.zeros_like(x).index_add(0, parent, self.up(x).index_select(0, child))
            x = self.cell(torch.cat([down, up], 1), x)
        which = torch.arange(len(tree.sizes), device=x.device)
        which = which.repeat_interleave(tree.sizes, output_size=len(x))
        whole = x.new_zeros(len(tree.sizes), WIDTH)
        return self.head(whole.index_add(0, which, torch.sigmoid(self.gate(x)) * x))


def questions(count):
    """Parse trees with the vectors of their words."""
    data, vectors = [], torch.randn(TOPICS, VECTOR)
    for k in range(count):
        words = int(torch.randint(30, 61, ()))
        parent = (torch.rand(words - 1) * torch.arange(1, words)).long()
        edges = torch.stack([parent, torch.arange(1, words)])
        heard = torch.randn(words, VECTOR) + 0.2 * vectors[k % TOPICS]
        data.append((Tree(heard, edges, torch.tensor([words])), k % TOPICS))
    return data


def main():
    torch.manual_seed(19)
    model = GatedGraph().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    loader = DataLoader(
        questions(16 * BATCH), batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate
    )
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for trees, topics in loader:
            if step == warm:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
            scores = model(trees.to(device))
            loss = F.cross_entropy(scores, topics.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
