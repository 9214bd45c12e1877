"""Graph network: messages summed node by node in a Python loop over the adjacency lists.

Planted: launch-bound (the line is marked). --fixed: index_add_ over all edges.
"""

import sys
import time

import torch
from torch import nn

TRUTH = "launch-bound"
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
NODES, EDGES = 150, 900
src, dst = torch.randint(0, NODES, (2, EDGES), device=DEV)
neighbours = [src[dst == n] for n in range(NODES)]


def aggregate(h):
    if FIXED:
        return torch.zeros_like(h).index_add_(0, dst, h[src])
    rows = []
    for n in range(NODES):
        rows.append(h[neighbours[n]].sum(0))  # planted
    return torch.stack(rows)


class Layer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.other = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, h):
        return torch.relu(self.own(h) + self.other(aggregate(h)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(32, 64), Layer(64, 64)])
        self.head = nn.Linear(64, 7)

    def forward(self, h):
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


net = Net().to(DEV)
opt = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
X, Y = torch.randn(NODES, 32, device=DEV), torch.randint(0, 7, (NODES,), device=DEV)
N = 160
for epoch in range(N):
    if epoch == 20:
        t0 = time.perf_counter()
    net.train()
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(X), Y)
    loss.backward()
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 20):.3f}")
