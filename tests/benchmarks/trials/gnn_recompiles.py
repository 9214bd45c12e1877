"""Graph network on graphs of ever different size, compiled with dynamic=False.

Planted: compile-bound (a recompilation in almost every step). --fixed: padded to one size.
"""

import argparse
import time

import torch
from torch import nn

TRUTH = "compile-bound"

cli = argparse.ArgumentParser()
cli.add_argument("--fixed", action="store_true")
flags = cli.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
for limit in ("recompile_limit", "cache_size_limit"):  # the name changed
    if hasattr(torch._dynamo.config, limit):
        setattr(torch._dynamo.config, limit, 10_000)
for limit in ("accumulated_recompile_limit", "accumulated_cache_size_limit"):
    if hasattr(torch._dynamo.config, limit):
        setattr(torch._dynamo.config, limit, 10_000)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Linear(2 * dim, dim)
        self.update = nn.GRUCell(dim, dim)

    def forward(self, x, src, dst):
        messages = torch.relu(self.message(torch.cat([x[src], x[dst]], 1)))
        return self.update(torch.zeros_like(x).index_add(0, dst, messages), x)


class Net(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.layers = nn.ModuleList([Layer(dim)])
        self.readout = nn.Linear(dim, 1)

    def forward(self, x, src, dst):
        for layer in self.layers:
            x = layer(x, src, dst)
        return self.readout(x.mean(0))


net = Net().to(device)
fast = torch.compile(net, dynamic=False, backend="aot_eager")
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
torch.manual_seed(0)
stamps = []
for step in range(60):
    stamps.append(time.perf_counter())
    nodes = 200 + (step * 37) % 101
    edges = 4 * nodes
    size, count = (301, 1204) if flags.fixed else (nodes, edges)
    x = torch.zeros(size, 32)
    x[:nodes] = torch.randn(nodes, 32)
    src = torch.full((count,), size - 1)
    dst = torch.full((count,), size - 1)
    src[:edges], dst[:edges] = torch.randint(nodes, (2, edges))
    loss = (fast(x.to(device), src.to(device), dst.to(device)) - 1).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
print(f"step_ms={(stamps[-1] - stamps[10]) * 1000 / (len(stamps) - 11):.3f}")
