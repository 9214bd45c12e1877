"""Labels the edges of meshes with the part that they belong to."""

import os
import time

import numpy as np
import torch
from mesh_union import MeshUnion
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
EDGES, POOLED, PARTS, BATCH = 480, (300, 190), 4, 4


class Mesh:
    """A closed chain of triangles: each edge knows its four neighbours."""

    def __init__(self, rng):
        jitter = rng.integers(2, 6, EDGES)
        own = np.arange(EDGES)
        around = np.stack([own - 1, own + 1, own - jitter, own + jitter], 1) % EDGES
        self.neighbours = torch.from_numpy(around)
        self.features = torch.from_numpy(rng.standard_normal((5, EDGES)).astype(np.float32))
        self.labels = torch.from_numpy(own * PARTS // EDGES)


class MeshConv(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, (1, 5))

    def forward(self, x, neighbours):
        rows = torch.arange(len(x))[:, None, None]
        f = x.transpose(1, 2)[rows, neighbours].permute(0, 3, 1, 2)
        a, b, c, d = f.unbind(3)
        image = torch.stack([x, (a - c).abs(), (b - d).abs(), a + c, b + d], 3)
        return torch.relu(self.conv(image)[..., 0])


class MeshPool(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target

    def forward(self, x, neighbours):
        pooled = [self.pool_one(*each) for each in zip(x, neighbours, strict=True)]
        return torch.stack([f for f, _ in pooled]), torch.stack([n for _, n in pooled])

    def pool_one(self, features, neighbours):
        edges = features.shape[1]
        order = features.detach().square().sum(0).argsort().tolist()
        around, union = neighbours.tolist(), MeshUnion(edges, together=VARIANT == "b")
        free, lost, gone, into = set(range(edges)), set(), [], list(range(edges))
        for edge in order:
            partners = around[edge][:2]
            if len(gone) == edges - self.target:
                break
            if edge in free and edge not in partners and not lost.intersection(partners):
                for partner in partners:
                    union.union(edge, partner)
                free -= {edge, *partners}
                lost.add(edge)
                gone.append(edge)
                into[edge] = partners[1]
        for edge in order:
            if len(gone) == edges - self.target:
                break
            if edge in free:
                free.discard(edge)
                gone.append(edge)
                into[edge] = around[edge][1] if into[around[edge][1]] == around[edge][1] else edge
        mask = torch.ones(edges, dtype=torch.bool)
        mask[gone] = False
        place = mask.cumsum(0) - 1
        kept = torch.tensor(into)[neighbours[mask]]
        return union.rebuild_features(features, mask), place[kept].clamp(min=0)


class MeshNet(nn.Module):
    def __init__(self, widths=(5, 16, 24, 24)):
        super().__init__()
        self.convs = nn.ModuleList(MeshConv(i, o) for i, o in zip(widths, widths[1:], strict=False))
        self.pools = nn.ModuleList(MeshPool(target) for target in POOLED)
        self.norms = nn.ModuleList(nn.InstanceNorm1d(width) for width in widths[1:])
        self.head = nn.Linear(widths[-1], PARTS)

    def forward(self, x, neighbours):
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x, neighbours))
            if i < len(self.pools):
                x, neighbours = self.pools[i](x, neighbours)
        return self.head(x.mean(2))


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    meshes, kinds = [Mesh(rng) for _ in range(24)], torch.randint(0, PARTS, (24,))
    for mesh, kind in zip(meshes, kinds, strict=True):
        mesh.features[int(kind)] *= 2
    model = MeshNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = rng.integers(0, len(meshes), BATCH)
        x = torch.stack([meshes[i].features for i in rows])
        logits = model(x, torch.stack([meshes[i].neighbours for i in rows]))
        loss = nn.functional.cross_entropy(logits, kinds[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
