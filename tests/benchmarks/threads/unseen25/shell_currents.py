"""Trains an equivariant network on the drift of sea shells that push one another."""

import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "600"))
SHELLS = int(os.environ.get("SHELLS", "1250"))
NEIGHBOURS = int(os.environ.get("NEIGHBOURS", "16"))
CHANNELS = int(os.environ.get("CHANNELS", "128"))
DEGREE = int(os.environ.get("DEGREE", "6"))
LAYERS = int(os.environ.get("LAYERS", "3"))


def generators(degree):
    """Real generators of rotations (about x, y and z) for one degree."""
    m = torch.arange(-degree, degree, dtype=torch.float64)
    raising = torch.diag(-torch.sqrt(degree * (degree + 1) - m * (m + 1)), diagonal=-1)
    m = torch.arange(-degree + 1, degree + 1, dtype=torch.float64)
    lowering = torch.diag(torch.sqrt(degree * (degree + 1) - m * (m - 1)), diagonal=1)
    m = torch.arange(-degree, degree + 1, dtype=torch.float64)
    turns = torch.stack([0.5 * (raising + lowering) + 0j, torch.diag(1j * m), -0.5j * (raising - lowering)])
    basis = torch.zeros(2 * degree + 1, 2 * degree + 1, dtype=torch.complex128)
    for k in range(-degree, 0):
        basis[degree + k, degree - k] = 2**-0.5
        basis[degree + k, degree + k] = -1j * 2**-0.5
    basis[degree, degree] = 1
    for k in range(1, degree + 1):
        basis[degree + k, degree + k] = (-1) ** k * 2**-0.5
        basis[degree + k, degree - k] = 1j * (-1) ** k * 2**-0.5
    basis = (-1j) ** degree * basis
    return (basis.conj().T @ turns @ basis).real


class Rotation(nn.Module):
    """The matrix of a rotation, given by three angles, for the features of one degree."""

    def __init__(self, degree):
        super().__init__()
        turns = generators(degree)
        self.degree = degree
        self.register_buffer("about_x", turns[0].float().contiguous())
        self.register_buffer("about_y", turns[1].float().contiguous())
        self.register_buffer("tilt", torch.matrix_exp(-0.5 * math.pi * turns[2]).float().contiguous())
        self.register_buffer("orders", torch.arange(degree, -degree - 1, -1).float())

    def turn(self, angle):
        waves = self.orders * angle[:, None]
        return torch.diag_embed(waves.cos()) + torch.diag_embed(waves.sin()).flip(-1)

    def forward(self, alpha, beta, gamma):
        if VARIANT == "a":
            a, b, c = (angle[:, None, None] for angle in (alpha, beta, gamma))
            last = torch.matrix_exp(b * self.about_x) @ torch.matrix_exp(c * self.about_y)
            return torch.matrix_exp(a * self.about_y) @ last
        return self.turn(alpha) @ self.tilt @ self.turn(beta) @ self.tilt.T @ self.turn(gamma)


class DriftLayer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.mix = nn.Linear(channels, channels, bias=False)
        self.gate = nn.Linear(channels, channels)

    def forward(self, x, frames, source, target):
        pushed = torch.bmm(frames, x[source])
        pushed = self.mix(pushed) * torch.sigmoid(self.gate(pushed[:, :1]))
        pushed = torch.bmm(frames.transpose(1, 2), pushed)
        return x + torch.zeros_like(x).index_add_(0, target, pushed) / NEIGHBOURS


class DriftModel(nn.Module):
    def __init__(self, degree, channels, layers):
        super().__init__()
        self.rotations = nn.ModuleList(Rotation(k) for k in range(1, degree + 1))
        self.size = (degree + 1) ** 2
        self.embed = nn.Parameter(torch.randn(self.size, channels) * 0.1)
        self.layers = nn.ModuleList(DriftLayer(channels) for _ in range(layers))
        self.head = nn.Linear(channels, 1)

    @torch.no_grad()
    def frames(self, angles):
        frames = angles.new_zeros(angles.shape[1], self.size, self.size)
        frames[:, 0, 0] = 1
        for rotation in self.rotations:
            low, high = rotation.degree**2, (rotation.degree + 1) ** 2
            frames[:, low:high, low:high] = rotation(*angles)
        return frames

    def forward(self, weights, angles, source, target):
        frames, x = self.frames(angles), weights[:, None, None] * self.embed
        for layer in self.layers:
            x = layer(x, frames, source, target)
        return self.head(x[:, 1:4]).squeeze(-1)


def main():
    torch.manual_seed(3)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = DriftModel(DEGREE, CHANNELS, LAYERS).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    target = torch.arange(SHELLS, device=device).repeat_interleave(NEIGHBOURS)
    tides = [
        (
            torch.rand(SHELLS, device=device) + 0.5,
            torch.randn(SHELLS, 3, device=device),
            torch.randint(SHELLS, (SHELLS * NEIGHBOURS,), device=device),
            2 * math.pi * torch.rand(3, SHELLS * NEIGHBOURS, device=device),
        )
        for _ in range(4)
    ]
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            wait()
            start = time.perf_counter()
        weights, drift, source, angles = tides[step % 4]
        loss = (model(weights, angles, source, target) - drift).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wait()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
