"""Train temporal graph attention to predict the next link in a stream of edits.

Events are read in order of time.  For both ends of each event, and for a random other end, the latest
neighbours before that time are taken, two hops deep; attention over them gives an embedding of each node.
"""

import os
import time
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 7000))
SMALL = os.environ.get("SMALL", "0") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

NODES = 300 if SMALL else 9000
EVENTS = 1200 if SMALL else 80000
BATCH = 20 if SMALL else 100
FANOUT = (4, 4) if SMALL else (10, 10)
EDGE_WIDTH = 8 if SMALL else 172
TIME_WIDTH = 8 if SMALL else 100
WIDTH, HEADS = (16 if SMALL else 172), 2
PRINT_EVERY = 10 if SMALL else 200
EMPTY = NODES


def make_events():
    """Make a stream of events: editors return to pages that they have edited before."""
    g = torch.Generator().manual_seed(1)
    editors = NODES * 8 // 9
    src = (torch.rand(EVENTS, generator=g) ** 2 * editors).long()
    page = (src * 7919 + (torch.rand(EVENTS, generator=g) ** 3 * 12).long()) % (NODES - editors)
    stamps = torch.cumsum(torch.randint(1, 60, (EVENTS,), generator=g), 0)
    edge_features = torch.randn(EVENTS, EDGE_WIDTH, generator=g)
    return src, page + editors, stamps, edge_features.to(device), editors


class LatestNeighbours:
    """Remembers the last neighbours of each node and hands out those before a given time."""

    def __init__(self, fanout):
        self.fanout, self.kept = fanout, max(fanout)
        self.reset()

    def reset(self):
        """Forget the stream."""
        self.history = [deque(maxlen=self.kept) for _ in range(NODES + 1)]

    def sample(self, nodes, stamps, count):
        """Return neighbours, times and events, for each node the latest ones at the end of its row."""
        neighbours, times, events = [], [], []
        for node, stamp in zip(nodes.tolist(), stamps.tolist()):
            before = [entry for entry in self.history[node] if entry[1] < stamp]
            before = before[-count:]
            missing = count - len(before)
            neighbours.append([EMPTY] * missing + [entry[0] for entry in before])
            times.append([0] * missing + [entry[1] for entry in before])
            events.append([0] * missing + [entry[2] for entry in before])
        return torch.tensor(neighbours), torch.tensor(times), torch.tensor(events)

    def hops(self, nodes, stamps):
        """Sample all hops, each from the neighbours of the hop before."""
        layers = []
        for count in self.fanout:
            found = self.sample(nodes, stamps, count)
            layers.append([x.to(device) for x in found])
            nodes, stamps = found[0].flatten(), found[1].flatten()
        return layers

    def update(self, src, dst, stamps, events):
        """Add a batch of events to both ends."""
        for s, d, t, e in zip(src.tolist(), dst.tolist(), stamps.tolist(), events.tolist()):
            self.history[s].append((d, t, e))
            self.history[d].append((s, t, e))


class RingNeighbours(LatestNeighbours):
    """The same memory as a table with a ring of entries for each node."""

    def reset(self):
        self.table = torch.zeros(NODES + 2, self.kept, 3, dtype=torch.long, device=device)
        self.table[..., 0] = EMPTY
        self.table[..., 1] = 2**60
        self.total = torch.zeros(NODES + 2, dtype=torch.long, device=device)
        self.slots = torch.arange(self.kept, device=device)

    def sample(self, nodes, stamps, count):
        nodes, stamps = nodes.to(device), stamps.to(device)
        start = torch.where(self.total[nodes] < self.kept, 0, self.total[nodes])
        order = (start.unsqueeze(1) + self.slots) % self.kept
        rows = torch.gather(self.table[nodes], 1, order.unsqueeze(-1).expand(-1, -1, 3))
        before = (rows[..., 1] < stamps.unsqueeze(1)).sum(1, keepdim=True)
        place = before - count + self.slots[:count]
        rows = torch.gather(rows, 1, place.clamp(min=0).unsqueeze(-1).expand(-1, -1, 3))
        found = place >= 0
        return torch.where(found, rows[..., 0], EMPTY), rows[..., 1] * found, rows[..., 2] * found

    def update(self, src, dst, stamps, events):
        nodes = torch.stack([src, dst], 1).flatten().to(device)
        others = torch.stack([dst, src], 1).flatten().to(device)
        stamps, events = (x.repeat_interleave(2).to(device) for x in (stamps, events))
        nodes, order = torch.sort(nodes, stable=True)
        first, after = torch.searchsorted(nodes, nodes), torch.searchsorted(nodes, nodes, right=True)
        rank = torch.arange(len(nodes), device=device) - first
        slot = (self.total[nodes] + rank) % self.kept
        row = torch.where(rank + self.kept >= after - first, nodes, NODES + 1)
        self.table[row, slot] = torch.stack([others[order], stamps[order], events[order]], 1)
        self.total.index_add_(0, nodes, torch.ones_like(nodes))


class TimeCode(nn.Module):
    """Cosines of the time since an event."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(10.0 ** -torch.linspace(0, 7, TIME_WIDTH))
        self.shift = nn.Parameter(torch.zeros(TIME_WIDTH))

    def forward(self, delta):
        return torch.cos(delta.unsqueeze(-1).float() * self.rate + self.shift)


class TemporalAttention(nn.Module):
    """Attention of a node over its neighbours, with the features and the age of each edge."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH + TIME_WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH + EDGE_WIDTH + TIME_WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH + EDGE_WIDTH + TIME_WIDTH, WIDTH)
        self.merge = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, centre, centre_time, near, near_edge, near_time, absent):
        rows, count = near.shape[:2]
        q = self.query(torch.cat([centre, centre_time], -1)).view(rows, HEADS, 1, -1)
        edge = torch.cat([near, near_edge, near_time], -1)
        k = self.key(edge).view(rows, count, HEADS, -1).transpose(1, 2)
        v = self.value(edge).view(rows, count, HEADS, -1).transpose(1, 2)
        score = (q * k).sum(-1) / k.shape[-1] ** 0.5
        weight = torch.softmax(score.masked_fill(absent.unsqueeze(1), -1e9), -1)
        pooled = (weight.unsqueeze(-1) * v).sum(2).flatten(1)
        return self.merge(torch.cat([pooled, centre], -1))


class LinkModel(nn.Module):
    """Two layers of temporal attention and a scorer of pairs."""

    def __init__(self, edge_features):
        super().__init__()
        self.edge_features = edge_features
        self.nodes = nn.Embedding(NODES + 1, WIDTH, padding_idx=EMPTY)
        self.clock = TimeCode()
        self.layers = nn.ModuleList(TemporalAttention() for _ in range(2))
        self.score = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def attend(self, layer, centre, stamps, near, hop):
        """Apply one layer to the neighbours of one hop."""
        _, times, events = hop
        age = self.clock(stamps.unsqueeze(1) - times)
        now = self.clock(torch.zeros_like(stamps))
        return layer(centre, now, near, self.edge_features[events], age, hop[0] == EMPTY)

    def forward(self, nodes, stamps, hops):
        inner, outer = hops
        near = self.nodes(outer[0])
        first = self.attend(
            self.layers[0], self.nodes(inner[0]).flatten(0, 1), inner[1].flatten(), near, outer
        )
        near = first.view(*inner[0].shape, -1)
        z = self.attend(self.layers[1], self.nodes(nodes), stamps, near, inner)
        src, dst, other = z.chunk(3)
        return self.score(torch.cat([src, dst], -1)), self.score(torch.cat([src, other], -1))


def main():
    src, dst, stamps, edge_features, editors = make_events()
    memory = LatestNeighbours(FANOUT) if VARIANT == "a" else RingNeighbours(FANOUT)
    model = LinkModel(edge_features).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(2)
    batches = torch.arange(EVENTS).split(BATCH)
    warm = min(10, STEPS // 2)
    begin, ranked = 0.0, torch.zeros((), device=device)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
        if step % len(batches) == 0:
            memory.reset()
        chosen = batches[step % len(batches)]
        s, d, t = src[chosen], dst[chosen], stamps[chosen]
        other = torch.randint(editors, NODES, (len(s),), generator=g)
        nodes, times = torch.cat([s, d, other]), t.repeat(3)
        hops = memory.hops(nodes, times)
        right, wrong = model(nodes.to(device), times.to(device), hops)
        last = F.softplus(-right).mean() + F.softplus(wrong).mean()
        optimizer.zero_grad()
        last.backward()
        optimizer.step()
        memory.update(s, d, t, chosen)
        ranked += (right.detach() > wrong.detach()).float().mean()
        if step % PRINT_EVERY == PRINT_EVERY - 1:
            print(f"step {step + 1} loss {last.item():.4f} ranked {ranked.item() / PRINT_EVERY:.3f}")
            ranked.zero_()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - begin
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
