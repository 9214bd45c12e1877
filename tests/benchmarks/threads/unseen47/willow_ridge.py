"""Trains a sparse Gaussian process on the heights of a landscape, by its evidence bound.

Systems with the matrix of the inducing points are solved by conjugate gradients, for several right
sides at once; the gradient of a solution is found by a solution, too.
"""

import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3000))
POINTS = 20000
INDUCING = 256
BATCH = 256
PROBES = 8
ROUNDS = 20


def conjugate_gradients(matrix, right, rounds=ROUNDS):
    """Solves matrix @ x = right for all columns of right, each with its own step lengths."""
    scale = matrix.diagonal().unsqueeze(1)
    solution = torch.zeros_like(right)
    residual = right.clone()
    scaled = residual / scale
    direction = scaled.clone()
    inner = (residual * scaled).sum(0)
    for _ in range(rounds):
        image = matrix @ direction
        length = inner / (direction * image).sum(0).clamp_min(1e-20)
        solution += length * direction
        residual -= length * image
        scaled = residual / scale
        new_inner = (residual * scaled).sum(0)
        direction = scaled + (new_inner / inner.clamp_min(1e-20)) * direction
        inner = new_inner
    return solution


class Solve(torch.autograd.Function):
    """The solution of a system, with gradients for the matrix and for the right sides."""

    @staticmethod
    def forward(ctx, matrix, right):
        solution = conjugate_gradients(matrix, right)
        ctx.save_for_backward(matrix, solution)
        return solution

    @staticmethod
    def backward(ctx, gradient):
        matrix, solution = ctx.saved_tensors
        back = conjugate_gradients(matrix, gradient)
        return -back @ solution.T, back


class InducingMatrix:
    """The covariance of the inducing points, with the solutions that the bound asks for."""

    def __init__(self, matrix, data, mean, root, probes):
        self.matrix = matrix
        self.right = {"data": data, "mean": mean, "root": root, "probes": probes}
        self.known = {}
        if VARIANT != "a":
            sides = list(self.right.values())
            parts = Solve.apply(matrix, torch.cat(sides, dim=1)).split([s.shape[1] for s in sides], dim=1)
            self.known = dict(zip(self.right, parts))

    def solve(self, *names):
        """The solutions for the named right sides."""
        if self.known:
            return [self.known[name] for name in names]
        sides = [self.right[name] for name in names]
        return Solve.apply(self.matrix, torch.cat(sides, dim=1)).split([s.shape[1] for s in sides], dim=1)


class Kernel(nn.Module):
    """A Matern kernel with one length for each input."""

    def __init__(self, inputs):
        super().__init__()
        self.log_length = nn.Parameter(torch.full((inputs,), -0.7))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, left, right):
        length = self.log_length.exp()
        left, right = left / length, right / length
        square = left.pow(2).sum(1, keepdim=True) + right.pow(2).sum(1) - 2 * left @ right.T
        distance = math.sqrt(3) * square.clamp_min(1e-8).sqrt()
        return self.log_scale.exp() * (1 + distance) * torch.exp(-distance)


class SparseProcess(nn.Module):
    """A process that is known by its values at the inducing points."""

    def __init__(self, inducing):
        super().__init__()
        self.inducing = nn.Parameter(inducing.clone())
        self.kernel = Kernel(inducing.shape[1])
        self.mean = nn.Parameter(torch.zeros(len(inducing), 1))
        self.root = nn.Parameter(0.3 * torch.eye(len(inducing)))
        self.log_noise = nn.Parameter(torch.tensor(-1.5))

    def expected_likelihood(self, system, inputs, targets):
        """How likely the targets are under the process at the inputs."""
        (weights,) = system.solve("data")
        mean = (weights.T @ self.mean).squeeze(1)
        (lift,) = system.solve("data")
        spread = (self.root.tril().T @ lift).pow(2).sum(0)
        variance = self.kernel.log_scale.exp() - (lift * system.right["data"]).sum(0) + spread
        noise = self.log_noise.exp()
        misfit = (targets - mean).pow(2) + variance.clamp_min(1e-6)
        return -0.5 * (misfit / noise + self.log_noise + math.log(2 * math.pi)).mean()

    def divergence(self, system):
        """How far the values are from the prior; the log determinant by its gradient at probes."""
        mean, root, probes = system.solve("mean", "root", "probes")
        square = (self.mean * mean).sum() + (self.root.tril() * root).sum()
        noise = system.right["probes"]
        determinant = (probes.detach() * (system.matrix @ noise)).sum() / PROBES
        own = self.root.diagonal().abs().clamp_min(1e-6).log().sum()
        return 0.5 * (square + determinant - len(self.mean)) - own

    def bound(self, inputs, targets, probes):
        matrix = self.kernel(self.inducing, self.inducing) + 0.1 * torch.eye(len(self.inducing))
        data = self.kernel(self.inducing, inputs)
        system = InducingMatrix(matrix, data, self.mean, self.root.tril(), probes)
        return self.expected_likelihood(system, inputs, targets) - self.divergence(system) / POINTS


def landscape(count, generator):
    """Random places with their heights."""
    places = 2 * torch.rand(count, 3, generator=generator) - 1
    heights = torch.sin(4 * places[:, 0]) * torch.cos(3 * places[:, 1]) + 0.5 * places[:, 2]
    return places, heights + 0.1 * torch.randn(count, generator=generator)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    places, heights = landscape(POINTS, generator)
    process = SparseProcess(places[:INDUCING])
    optimizer = torch.optim.Adam(process.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, POINTS, (BATCH,), generator=generator)
        probes = torch.randn(INDUCING, PROBES, generator=generator)
        loss = -process.bound(places[rows], heights[rows], probes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 200 == 0:
            print(f"step {step + 1} loss {loss.item():.4f} noise {process.log_noise.exp().item():.4f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
