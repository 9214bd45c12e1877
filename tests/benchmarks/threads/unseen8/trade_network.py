"""Foretells which ports fail their targets, from the routes of several kinds between them."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 350))
PORTS, ROUTES, KINDS, WIDTH, CLASSES = 3000, 90000, 4, 32, 8


class Network:
    """The routes: from where, to where, of which kind and how much they carry."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.start = torch.randint(0, PORTS, (ROUTES,), generator=generator)
        self.end = torch.randint(0, PORTS, (ROUTES,), generator=generator)
        self.kind = torch.randint(0, KINDS, (ROUTES,), generator=generator)
        self.cargo = torch.rand(ROUTES, generator=generator)
        self.features = torch.randn(PORTS, WIDTH, generator=generator)
        self.labels = torch.randint(0, CLASSES, (PORTS,), generator=generator)
        self.table = self.matrix().to_sparse_csr() if VARIANT == "b" else None

    def matrix(self):
        rows = self.end * KINDS + self.kind
        return torch.sparse_coo_tensor(
            torch.stack([rows, self.start]), self.cargo, (PORTS * KINDS, PORTS), check_invariants=False
        )


class Relational(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.own = nn.Linear(KINDS * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, network, x):
        adjacency = network.matrix() if network.table is None else network.table
        messages = torch.sparse.mm(adjacency, x).view(PORTS, KINDS * WIDTH)
        return self.norm(torch.relu(self.mix(messages) + self.own(x)))


class PortNet(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Relational() for _ in range(layers))
        self.head = nn.Sequential(nn.Linear((layers + 1) * WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))

    def forward(self, network):
        states = [network.features]
        for layer in self.layers:
            states.append(layer(network, states[-1]))
        return self.head(torch.cat(states, dim=-1))


def main():
    torch.manual_seed(0)
    network = Network()
    model = PortNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        chosen = torch.randint(0, PORTS, (1024,))
        loss = nn.functional.cross_entropy(model(network)[chosen], network.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
