"""Trains a layered circuit of two-level ions to give the energies of measured samples."""

import os
import time

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 900))
IONS = int(os.environ.get("IONS", 9))
LAYERS = int(os.environ.get("LAYERS", 4))
BATCH = int(os.environ.get("BATCH", 32))
VARIANT = os.environ.get("VARIANT", "a")


def turn(state, wire, angle):
    """Turns one ion about the y axis; the angle is one number, or one for each sample."""
    parts = state.view(state.shape[0], 2**wire, 2, -1)
    low, high = parts.unbind(2)
    c, s = torch.cos(angle / 2).view(-1, 1, 1), torch.sin(angle / 2).view(-1, 1, 1)
    return torch.stack((c * low - s * high, s * low + c * high), dim=2).view(state.shape)


def phase(state, wire, angle):
    """Turns one ion about the z axis."""
    parts = state.view(state.shape[0], 2**wire, 2, -1)
    half = torch.stack((-angle / 2, angle / 2)).view(1, 1, 2, 1)
    return (parts * torch.polar(torch.ones_like(half), half)).view(state.shape)


def ring_signs(ions):
    """Signs of the basis states after a controlled flip of each neighbouring pair."""
    index = torch.arange(2**ions)
    sign = torch.ones(2**ions)
    for i in range(ions):
        j = (i + 1) % ions
        both = (index >> i & 1) * (index >> j & 1)
        sign = sign * (1 - 2 * both)
    return sign


class Observable(nn.Module):
    """A Hermitian matrix over all ions, and its mean in a batch of states."""

    def __init__(self, ions):
        super().__init__()
        half = torch.randn(2**ions, 2**ions, dtype=torch.complex64) / 2 ** (ions / 2)
        self.register_buffer("matrix", (half + half.mH) / 2)

    def mean_by_levels(self, state):
        levels, basis = torch.linalg.eigh(self.matrix)
        amplitude = state @ basis.conj()
        weight = amplitude.real.square() + amplitude.imag.square()
        return weight @ levels

    def mean_by_product(self, state):
        return (state.conj() * (state @ self.matrix.T)).sum(1).real

    def forward(self, state):
        if VARIANT == "a":
            return self.mean_by_levels(state)
        return self.mean_by_product(state)


class Ladder(nn.Module):
    def __init__(self, ions, layers):
        super().__init__()
        self.ions = ions
        self.theta = nn.Parameter(0.5 * torch.randn(layers, ions))
        self.phi = nn.Parameter(0.5 * torch.randn(layers, ions))
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("signs", ring_signs(ions))
        self.energy = Observable(ions)

    def forward(self, x):
        state = torch.zeros(x.shape[0], 2**self.ions, dtype=torch.complex64, device=x.device)
        state[:, 0] = 1.0
        for theta, phi in zip(self.theta, self.phi):
            for wire in range(self.ions):
                state = turn(state, wire, theta[wire] + x[:, wire])
                state = phase(state, wire, phi[wire])
            state = state * self.signs
        return self.scale * self.energy(state)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(2)
    model = Ladder(IONS, LAYERS).to(device)
    samples = torch.randn(64, BATCH, IONS, device=device)
    energies = torch.tanh(samples.sum(2)) * 0.3
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        k = step % samples.shape[0]
        loss = (model(samples[k]) - energies[k]).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
