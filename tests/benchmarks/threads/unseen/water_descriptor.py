"""Fits the energy of water with descriptors of each atom's surroundings."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
FRAMES, ATOMS, KINDS, AXES = 1, 192, 4, 8
SECTIONS = [0, 46, 92, 138, 184]


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers)


class Descriptor(nn.Module):
    def __init__(self, widths=(1, 25, 50, 100)):
        super().__init__()
        self.networks = nn.ModuleList(mlp(*widths) for _ in range(KINDS))
        self.width = widths[-1]

    def forward(self, around, kinds):
        total = torch.zeros(len(around), 4, self.width, device=around.device)
        for number, network in enumerate(self.networks):
            first, last = SECTIONS[number], SECTIONS[number + 1]
            if VARIANT == "a":
                present = torch.ones_like(kinds, dtype=torch.bool)
                near = around[present, first:last, :]
                found = near.transpose(1, 2) @ network(near[:, :, :1])
                total[present] += found
            else:
                near = around[:, first:last, :]
                total = total + near.transpose(1, 2) @ network(near[:, :, :1])
        total = total / SECTIONS[-1]
        return (total.transpose(1, 2) @ total[:, :, :AXES]).flatten(1)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.descriptor = Descriptor()
        size = self.descriptor.width * AXES
        self.fit = nn.ModuleList(nn.Sequential(mlp(size, 240, 240), nn.Linear(240, 1)) for _ in range(KINDS))

    def forward(self, around, kinds):
        described = self.descriptor(around, kinds)
        of_kind = torch.cat([fit(described) for fit in self.fit], 1)
        return of_kind.gather(1, kinds[:, None]).sum()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Energy().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    kinds = torch.arange(ATOMS, device=device) % KINDS
    scenes = torch.randn(16, ATOMS, SECTIONS[-1], 4, device=device)
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        around = scenes[step % 16].clone().requires_grad_()
        energy = model(around, kinds)
        (force,) = torch.autograd.grad(energy, around, create_graph=True)
        loss = energy.square() / ATOMS + force.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
