"""Learns how far each joint of a bridge truss sways, from drawings of small trusses."""

import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "340"))


def draw_truss(rng):
    """A strip of panels: bottom and top chords, posts, and some diagonals."""
    panels = rng.randint(7, 12)
    struts = []
    for i in range(panels + 1):
        struts.append((2 * i, 2 * i + 1))
        if i < panels:
            struts += [(2 * i, 2 * i + 2), (2 * i + 1, 2 * i + 3)]
            struts.append((2 * i, 2 * i + 3) if rng.random() < 0.5 else (2 * i + 1, 2 * i + 2))
    return 2 * (panels + 1), struts


def distance_without(neighbours, u, v):
    """Joints on the shortest way from u to v that does not use the strut between them."""
    seen, front = {u}, [u]
    for length in range(1, len(neighbours)):
        following = []
        for a in front:
            for b in neighbours[a]:
                if b == v and a != u:
                    return length
                if b != v and b not in seen:
                    seen.add(b)
                    following.append(b)
        front = following
    return 0


def hinge_quads(edge_index, joints):
    """Four joints in a row for each strut with struts at both its ends, and the ring it is in."""
    source, target = edge_index
    neighbours = [target[source == joint].tolist() for joint in range(joints)]
    quads, rings = [], []
    for u, v in edge_index.t():
        if u < v:
            before = target[(source == u) & (target != v)]
            after = target[(source == v) & (target != u)]
            outer = torch.cartesian_prod(before, after)
            outer = outer[outer[:, 0] != outer[:, 1]]
            inner = edge_index.new_tensor([[u, v]]).expand(len(outer), 2)
            quads.append(torch.cat([outer[:, :1], inner, outer[:, 1:]], dim=1))
            rings += [float(distance_without(neighbours, int(u), int(v)))] * len(outer)
    return torch.cat(quads), torch.tensor(rings)


class Trusses(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.samples, self.hinges = [], {}
        for _ in range(count):
            joints, struts = draw_truss(rng)
            edge_index = torch.tensor(struts + [(v, u) for u, v in struts]).t()
            x = torch.randn(joints, 8, generator=generator)
            y = x[:, :2].sum(1) + 0.3 * x[:, 2].roll(1) + 0.05 * torch.randn(joints, generator=generator)
            self.samples.append((x, edge_index, y))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        x, edge_index, y = self.samples[index]
        if VARIANT == "a" or index not in self.hinges:
            self.hinges[index] = hinge_quads(edge_index, len(x))
        return x, edge_index, y, self.hinges[index]


def join(samples):
    offset, edges, quads = 0, [], []
    for x, edge_index, _, (quad, _) in samples:
        edges.append(edge_index + offset)
        quads.append(quad + offset)
        offset += len(x)
    x, y, rings = (torch.cat(rows) for rows in zip(*((s[0], s[2], s[3][1]) for s in samples)))
    return x, torch.cat(edges, dim=1), y, torch.cat(quads), rings


class SwayNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.messages = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(2)])
        self.hinge = nn.Sequential(nn.Linear(4 * width + 1, width), nn.ReLU(), nn.Linear(width, width))
        self.out = nn.Linear(width, 1)

    def forward(self, x, edge_index, quads, rings):
        h, (source, target) = torch.relu(self.enter(x)), edge_index
        for layer in self.messages:
            m = torch.relu(layer(torch.cat([h[source], h[target]], dim=1)))
            h = h + torch.zeros_like(h).index_add(0, target, m) / 4
        bent = self.hinge(torch.cat([h[quads].flatten(1), rings[:, None]], dim=1))
        h = h + torch.zeros_like(h).index_add(0, quads[:, 1], bent) / 8
        return self.out(h).squeeze(1)


torch.manual_seed(31)
loader = DataLoader(Trusses(64, 5), batch_size=8, shuffle=True, collate_fn=join)
model = SwayNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
warm = min(10, STEPS // 2)
step = 0
for epoch in range(STEPS // len(loader) + 1):
    for x, edge_index, y, quads, rings in loader:
        if step == STEPS:
            break
        if step == warm:
            start = time.perf_counter()
        loss = F.mse_loss(model(x, edge_index, quads, rings), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
