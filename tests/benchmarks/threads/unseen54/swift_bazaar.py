"""Link prediction in a bazaar of sellers and goods: anchors, their known links, and a subgraph.

Labels come as ids of the whole graph and are wanted as places in the sampled subgraph.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 6 if SMALL else 5500))
WARMUP = 2 if SMALL else 10

device = "cuda" if torch.cuda.is_available() else "cpu"
NODES = 2000 if SMALL else 300_000
DEGREE = 4 if SMALL else 16
ANCHORS = 8 if SMALL else 128
MOST = 6
WIDTH = 32 if SMALL else 512
LAYERS = 2 if SMALL else 5
FANOUT = 2 if SMALL else 5


class Bazaar:
    """A graph of fixed degree, the known links of each node, and a sampler of two hops."""

    def __init__(self):
        g = torch.Generator().manual_seed(2)
        self.g = torch.Generator().manual_seed(3)
        self.neighbours = torch.randint(NODES, (NODES, DEGREE), generator=g)
        self.links = torch.randint(NODES, (NODES, MOST), generator=g)
        self.count = torch.randint(1, MOST + 1, (NODES,), generator=g)

    def hop(self, nodes):
        pick = torch.randint(DEGREE, (len(nodes), FANOUT), generator=self.g)
        return self.neighbours[nodes.unsqueeze(1), pick]

    def sample(self):
        anchors = torch.randint(NODES, (ANCHORS,), generator=self.g)
        labels = [self.links[a, : self.count[a]] for a in anchors.tolist()]
        seeds = torch.cat([anchors] + labels)
        first = self.hop(seeds)
        second = self.hop(first.flatten())
        node = torch.cat([seeds, first.flatten(), second.flatten()]).unique()
        place = torch.full((NODES,), -1)
        place[node] = torch.arange(len(node))
        near = torch.stack([place[first.flatten()], place[seeds.repeat_interleave(FANOUT)]])
        far = torch.stack([place[second.flatten()], place[first.flatten().repeat_interleave(FANOUT)]])
        return node, torch.cat([near, far], 1), place[anchors], labels


def remap(node, labels):
    """Pairs (number of the anchor, place of its label in the subgraph)."""
    if VARIANT == "a":
        places = {}
        for i, ids in enumerate(labels):
            hit = node.unsqueeze(1) == ids.unsqueeze(0)
            places[i] = hit.any(1).nonzero().squeeze(1)
        anchor = torch.cat([torch.full_like(places[i], i) for i in places])
        return torch.stack([anchor, torch.cat(list(places.values()))])
    ids = torch.cat(labels)
    anchor = torch.arange(len(labels)).repeat_interleave(torch.tensor([len(x) for x in labels]))
    return torch.stack([anchor, torch.searchsorted(node, ids)])


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(NODES, 64) * 0.1, requires_grad=False)
        self.inp = nn.Linear(64, WIDTH)
        self.own = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.other = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, node, edges):
        x = F.relu(self.inp(self.table[node]))
        source, target = edges
        degree = torch.zeros(len(x), device=x.device).index_add_(
            0, target, torch.ones(len(target), device=x.device)
        )
        for own, other in zip(self.own, self.other):
            mixed = torch.zeros_like(x).index_add_(0, target, x[source])
            mixed = mixed / degree.clamp(min=1).unsqueeze(1)
            x = x + F.relu(own(x) + other(mixed))
        return F.normalize(x, dim=1)


def clock():
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    bazaar = Bazaar()
    model = Sage().to(device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-4, fused=device == "cuda")

    for step in range(STEPS):
        if step == WARMUP:
            begin = clock()
        node, edges, anchors, labels = bazaar.sample()
        pairs = remap(node, labels)
        node, edges, anchors, pairs = (x.to(device) for x in (node, edges, anchors, pairs))
        x = model(node, edges)
        scores = x[anchors] @ x[pairs[1]].t() / 0.1
        loss = -(F.log_softmax(scores, 1)[pairs[0], torch.arange(len(pairs[1]), device=device)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    took = clock() - begin

    print(f"loss {loss.item():.4f}")
    print(f"{took * 1000 / (STEPS - WARMUP):.2f} ms per step")


if __name__ == "__main__":
    main()
