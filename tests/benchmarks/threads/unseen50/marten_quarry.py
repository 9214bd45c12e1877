"""Train an energy model of crystals on densities of neighbours in radial and angular functions.

Each layer lets the neighbours of an atom speak through a radial network and real spherical harmonics; the
squares of the summed messages do not change under rotation, and a small network reads them.
"""

import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))
SMALL = os.environ.get("SMALL", "0") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True

CRYSTALS = 16 if SMALL else 512
ATOMS = 4 if SMALL else 12
NEIGHBOURS = 6 if SMALL else 16
BATCH = 4 if SMALL else 64
ELEMENTS = 20
ORDER = 2 if SMALL else 4
CHANNELS = 8 if SMALL else 32
LAYERS = 2 if SMALL else 4
RADIAL = 8 if SMALL else 24
CUTOFF = 5.0
SHAKE = 0.02
PRINT_EVERY = 10 if SMALL else 200
VALIDATE_EVERY = 20 if SMALL else 1000
PARTS = [2 * order + 1 for order in range(ORDER + 1)]


def norms():
    """Norms of the real spherical harmonics by order and degree."""
    table = {}
    for order in range(ORDER + 1):
        for m in range(order + 1):
            ratio = math.factorial(order - m) / math.factorial(order + m)
            table[order, m] = math.sqrt((2 * order + 1) / (4 * math.pi) * ratio) * (math.sqrt(2) if m else 1)
    return table


NORMS = norms()


def legendre(z, start):
    """Legendre functions by recursion from those of equal order and degree."""
    table = {}
    for m in range(ORDER + 1):
        table[m, m] = start[m]
        if m < ORDER:
            table[m + 1, m] = (2 * m + 1) * z * start[m]
        for order in range(m + 2, ORDER + 1):
            upper = (2 * order - 1) * z * table[order - 1, m] - (order + m - 1) * table[order - 2, m]
            table[order, m] = upper / (order - m)
    return table


def harmonics_of_angles(vectors):
    """Real spherical harmonics of the directions, from polar angle and azimuth."""
    xyz = vectors.detach().cpu().numpy().astype(np.float64)
    theta = np.arccos(np.clip(xyz[:, 2] / np.linalg.norm(xyz, axis=1), -1, 1))
    phi = np.arctan2(xyz[:, 1], xyz[:, 0])
    start = {0: np.ones_like(theta)}
    for m in range(1, ORDER + 1):
        start[m] = (2 * m - 1) * np.sin(theta) * start[m - 1]
    table = legendre(np.cos(theta), start)
    columns = []
    for order in range(ORDER + 1):
        for m in range(-order, order + 1):
            turn = np.cos(m * phi) if m >= 0 else np.sin(-m * phi)
            columns.append(NORMS[order, abs(m)] * table[order, abs(m)] * turn)
    return torch.tensor(np.stack(columns, axis=1), dtype=vectors.dtype).to(vectors.device)


def harmonics_of_coordinates(vectors):
    """Real spherical harmonics of the directions, from polynomials of the coordinates."""
    x, y, z = F.normalize(vectors, dim=1).unbind(1)
    start, real, imaginary = {0: torch.ones_like(x)}, [torch.ones_like(x)], [torch.zeros_like(x)]
    for m in range(1, ORDER + 1):
        start[m] = (2 * m - 1) * start[m - 1]
        real.append(x * real[m - 1] - y * imaginary[m - 1])
        imaginary.append(x * imaginary[m - 1] + y * real[m - 1])
    table = legendre(z, start)
    columns = []
    for order in range(ORDER + 1):
        for m in range(-order, order + 1):
            turn = real[m] if m >= 0 else imaginary[-m]
            columns.append(NORMS[order, abs(m)] * table[order, abs(m)] * turn)
    return torch.stack(columns, dim=1)


def spherical_harmonics_xyz(vectors):
    """Real spherical harmonics up to the highest order, for edges by functions."""
    return harmonics_of_angles(vectors) if VARIANT == "a" else harmonics_of_coordinates(vectors)


class Crystals:
    """Crystals with elements, edges to the nearest images, and energies of a pair potential."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.elements = torch.randint(0, ELEMENTS, (count, ATOMS), generator=g).to(device)
        direction = F.normalize(torch.randn(count, ATOMS, NEIGHBOURS, 3, generator=g), dim=-1)
        length = 1.5 + 3.4 * torch.rand(count, ATOMS, NEIGHBOURS, 1, generator=g)
        self.vectors = (direction * length).to(device)
        self.senders = torch.randint(0, ATOMS, (count, ATOMS, NEIGHBOURS), generator=g).to(device)
        pair = self.elements.unsqueeze(2) + torch.gather(
            self.elements.unsqueeze(1).expand(-1, ATOMS, -1), 2, self.senders
        )
        sizes = length.squeeze(-1).to(device)
        self.energies = ((1 + pair / ELEMENTS) * torch.exp(-sizes) * torch.cos(2 * sizes)).sum((1, 2))
        self.energies = (self.energies - self.energies.mean()) / self.energies.std()

    def batch(self, chosen):
        """Join some crystals to one graph."""
        offset = torch.arange(len(chosen), device=device).view(-1, 1, 1) * ATOMS
        return {
            "elements": self.elements[chosen].flatten(),
            "senders": (self.senders[chosen] + offset).flatten(),
            "vectors": self.vectors[chosen].flatten(0, 2),
            "energies": self.energies[chosen],
        }


class DensityLayer(nn.Module):
    """Messages of the neighbours in radial and angular functions, squared and read."""

    def __init__(self):
        super().__init__()
        self.radial = nn.Sequential(nn.Linear(RADIAL, 64), nn.SiLU(), nn.Linear(64, CHANNELS * (ORDER + 1)))
        self.send = nn.Linear(CHANNELS, CHANNELS)
        self.read = nn.Sequential(nn.Linear(CHANNELS * (ORDER + 2), 128), nn.SiLU(), nn.Linear(128, CHANNELS))
        self.register_buffer("part", torch.repeat_interleave(torch.arange(ORDER + 1), torch.tensor(PARTS)))

    def forward(self, h, graph, basis):
        angular = spherical_harmonics_xyz(graph["vectors"])
        radial = self.radial(basis).view(-1, CHANNELS, ORDER + 1)
        sent = torch.index_select(self.send(h), 0, graph["senders"]).unsqueeze(-1) * radial
        message = torch.index_select(sent, 2, self.part) * angular.unsqueeze(1)
        density = message.view(len(h), NEIGHBOURS, CHANNELS, -1).sum(1)
        power = [(piece**2).mean(-1) for piece in density.split(PARTS, dim=-1)]
        return h + self.read(torch.cat([h] + power, dim=-1))


class EnergyModel(nn.Module):
    """Embedding of the elements, layers of densities, and a sum over the atoms."""

    def __init__(self):
        super().__init__()
        self.elements = nn.Embedding(ELEMENTS, CHANNELS)
        self.layers = nn.ModuleList(DensityLayer() for _ in range(LAYERS))
        self.energy = nn.Sequential(nn.Linear(CHANNELS, 64), nn.SiLU(), nn.Linear(64, 1))
        self.register_buffer("centres", torch.linspace(0.8, CUTOFF, RADIAL))

    def forward(self, graph):
        length = graph["vectors"].norm(dim=1, keepdim=True)
        window = 0.5 * (torch.cos(math.pi * length / CUTOFF) + 1) * (length < CUTOFF)
        basis = torch.exp(-8 * (length - self.centres) ** 2) * window
        h = self.elements(graph["elements"])
        for layer in self.layers:
            h = layer(h, graph, basis)
        return self.energy(h).view(-1, ATOMS).mean(1)


def main():
    train, held = Crystals(CRYSTALS, 1), Crystals(2 * BATCH, 2)
    model = EnergyModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9997)
    g = torch.Generator().manual_seed(3)
    warm = min(10, STEPS // 2)
    begin, running = 0.0, torch.zeros((), device=device)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
        graph = train.batch(torch.randint(0, CRYSTALS, (BATCH,), generator=g).to(device))
        graph["vectors"] = graph["vectors"] + SHAKE * torch.randn_like(graph["vectors"])
        last = F.smooth_l1_loss(model(graph), graph["energies"])
        optimizer.zero_grad()
        last.backward()
        optimizer.step()
        schedule.step()
        running += last.detach()
        if step % PRINT_EVERY == PRINT_EVERY - 1:
            print(f"step {step + 1} loss {running.item() / PRINT_EVERY:.4f}")
            running.zero_()
        if step % VALIDATE_EVERY == VALIDATE_EVERY - 1:
            with torch.no_grad():
                graph = held.batch(torch.arange(2 * BATCH, device=device))
                error = (model(graph) - graph["energies"]).abs().mean().item()
            print(f"step {step + 1} mean error on held-out crystals {error:.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - begin
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
