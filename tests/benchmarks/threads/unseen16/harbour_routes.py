"""Which harbours are alike: contrastive learning on a network of shipping routes, seen twice with gaps."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
HARBOURS = int(os.environ.get("HARBOURS", 400_000))
ROUTES = int(os.environ.get("ROUTES", 8_000_000))
WIDTH = int(os.environ.get("WIDTH", 16))
SAMPLE = int(os.environ.get("SAMPLE", 2048))
FEATURES = 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def coalesce(edges, nodes):
    """Edges in order of their ends, each of them once."""
    key, _ = (edges[0] * nodes + edges[1]).sort()
    once = torch.ones_like(key, dtype=torch.bool)
    once[1:] = key[1:] != key[:-1]
    key = key[once]
    return torch.stack([key // nodes, key % nodes])


def with_gaps(edges, nodes, gap):
    """Leaves routes out, in both directions."""
    there = edges[:, edges[0] < edges[1]]
    there = there[:, torch.rand(there.shape[1], device=there.device) >= gap]
    both = torch.cat([there, there.flip(0)], 1)
    return coalesce(both, nodes) if VARIANT == "a" else both


class Convolution(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.linear = nn.Linear(before, after)

    def forward(self, x, edges, weight):
        source, target = edges
        y = self.linear(x)
        sent = y.index_select(0, source) * weight[:, None]
        return torch.zeros_like(y).index_add(0, target, sent) + y


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Convolution(FEATURES, WIDTH), Convolution(WIDTH, WIDTH)
        self.project = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x, edges):
        degree = torch.ones(len(x), device=x.device)
        degree = degree.index_add(0, edges[1], torch.ones_like(edges[1], dtype=x.dtype))
        root = degree.rsqrt()
        weight = root.index_select(0, edges[0]) * root.index_select(0, edges[1])
        x = F.relu(self.first(x, edges, weight))
        return self.project(F.relu(self.second(x, edges, weight)))


def unlike(one, two, temperature=0.5):
    """Each harbour should find itself among all others of the other view."""
    one, two = F.normalize(one, dim=1), F.normalize(two, dim=1)
    scores = one @ two.T / temperature
    self_index = torch.arange(len(one), device=one.device)
    return 0.5 * (F.cross_entropy(scores, self_index) + F.cross_entropy(scores.T, self_index))


def network():
    """Routes between near harbours, both ways and each once, and what is known of the harbours."""
    start = torch.randint(0, HARBOURS, (ROUTES,), device=device)
    jump = (torch.rand(ROUTES, device=device) ** 3 * HARBOURS / 8).long() + 1
    key = torch.unique(start * HARBOURS + (start + jump).clamp(max=HARBOURS - 1))
    start, end = key // HARBOURS, key % HARBOURS
    start, end = start[start < end], end[start < end]
    x = torch.randn(HARBOURS, FEATURES, device=device)
    return x, torch.stack([torch.cat([start, end]), torch.cat([end, start])])


def main():
    torch.manual_seed(47)
    model = Encoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=device.type == "cuda")
    x, routes = network()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        views = []
        for gap, hidden in ((0.3, 0.2), (0.4, 0.1)):
            shown = (torch.rand(FEATURES, device=device) >= hidden).float()
            views.append(model(x * shown, with_gaps(routes, HARBOURS, gap)))
        chosen = torch.randint(0, HARBOURS, (SAMPLE,), device=device)
        loss = unlike(views[0].index_select(0, chosen), views[1].index_select(0, chosen))
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
