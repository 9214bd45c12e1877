"""How much electricity a house draws: a sparse variational Gaussian process on learnt features."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 310))
BATCH = int(os.environ.get("BATCH", 32768))
ANCHORS = int(os.environ.get("ANCHORS", 1536))
WIDTH = int(os.environ.get("WIDTH", 1024))
INPUTS, FEATURES = 11, 16
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Posterior(nn.Module):
    """Mean and variance of the process at new points, from what is believed at the anchors."""

    def __init__(self):
        super().__init__()
        self.anchors = nn.Parameter(1.5 * torch.randn(ANCHORS, FEATURES))
        self.mean = nn.Parameter(torch.zeros(ANCHORS))
        self.root = nn.Parameter(torch.eye(ANCHORS))
        self.log_length, self.log_scale = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.zeros(()))
        self.register_buffer("eye", torch.eye(ANCHORS))

    def kernel(self, x, y):
        x, y = x / self.log_length.exp(), y / self.log_length.exp()
        apart = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T
        return self.log_scale.exp() * torch.exp(-0.5 * apart.clamp(min=0))

    def forward(self, x):
        lower = torch.linalg.cholesky(self.kernel(self.anchors, self.anchors) + 0.01 * self.eye)
        across = self.kernel(self.anchors, x)
        root = self.root.tril()
        if VARIANT == "b":
            inverse = torch.linalg.solve_triangular(lower, self.eye, upper=False)
            middle = inverse.T @ (root @ root.T - self.eye) @ inverse
            mean = across.T @ (inverse.T @ self.mean)
            extra = (across * (middle @ across)).sum(0)
        else:
            solved = torch.linalg.solve_triangular(lower, across, upper=False)
            mean = solved.T @ self.mean
            extra = (solved * (root @ (root.T @ solved) - solved)).sum(0)
        return mean, (self.log_scale.exp() + extra).clamp(min=1e-4)

    def divergence(self):
        root = self.root.tril()
        log_volume = root.diagonal().abs().log().sum()
        return 0.5 * (root.square().sum() + self.mean.square().sum() - ANCHORS) - log_volume


class CurrentModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(INPUTS, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, FEATURES),
            nn.LayerNorm(FEATURES),
        )
        self.posterior = Posterior()
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def loss(self, x, y, total):
        mean, variance = self.posterior(self.features(x))
        noise = self.log_noise.exp()
        fit = ((y - mean).square() + variance) / noise + self.log_noise + math.log(2 * math.pi)
        return 0.5 * fit.mean() + self.posterior.divergence() / total


def meters(count):
    x = torch.randn(count, INPUTS)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * F.relu(x[:, 3]) + 0.3 * torch.randn(count)
    return x.to(device), ((y - y.mean()) / y.std()).to(device)


def main():
    torch.manual_seed(61)
    model = CurrentModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    x, y = meters(16 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 16 * BATCH, (step % 16 + 1) * BATCH)
        loss = model.loss(x[rows], y[rows], len(y))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
