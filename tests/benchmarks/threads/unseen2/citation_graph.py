"""Topics of papers by who cites whom; each step sees a part of the graph."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
NODES, EDGES, FEATURES, EDGE_FEATURES, TOPICS = 12_000, 120_000, 64, 16, 12


def mask_select(src, dim, mask):
    if VARIANT == "b":
        return src.transpose(0, dim)[mask].transpose(0, dim)
    size = [-1] * src.dim()
    size[dim] = int(mask.sum())
    shape = [1] * src.dim()
    shape[dim] = -1
    out = src.masked_select(mask.view(shape))
    size[1 - dim] = src.shape[1 - dim]
    return out.view(size)


def subgraph(subset, x, edge_index, edge_attr, y):
    edges = subset[edge_index[0]] & subset[edge_index[1]]
    renamed = torch.cumsum(subset, 0) - 1
    return (
        mask_select(x, 0, subset),
        renamed[edge_index[:, edges]],
        mask_select(edge_attr, 0, edges),
        y[subset],
    )


class EdgeConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.node, self.edge = nn.Linear(a, b), nn.Linear(EDGE_FEATURES, b)

    def forward(self, x, edge_index, edge_attr):
        x = self.node(x)
        message = torch.relu(x[edge_index[0]] + self.edge(edge_attr))
        return torch.zeros_like(x).index_add_(0, edge_index[1], message) + x


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first, self.second = EdgeConv(FEATURES, width), EdgeConv(width, TOPICS)

    def forward(self, x, edge_index, edge_attr):
        return self.second(torch.relu(self.first(x, edge_index, edge_attr)), edge_index, edge_attr)


def main():
    torch.manual_seed(0)
    x, y = torch.randn(NODES, FEATURES), torch.randint(0, TOPICS, (NODES,))
    edge_index = torch.randint(0, NODES, (2, EDGES))
    edge_attr = torch.randn(EDGES, EDGE_FEATURES)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        subset = torch.rand(NODES) < 0.5
        part_x, part_edges, part_attr, part_y = subgraph(subset, x, edge_index, edge_attr, y)
        loss = nn.functional.cross_entropy(model(part_x, part_edges, part_attr), part_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
