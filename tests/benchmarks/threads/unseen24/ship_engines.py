"""Odd behaviour of ships' engines: an autoencoder with a mixture of Gaussians over its inner values."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 240))
BATCH = int(os.environ.get("BATCH", 12288))
WIDTH = int(os.environ.get("WIDTH", 2048))
INNER = int(os.environ.get("INNER", 32))
KINDS = int(os.environ.get("KINDS", 12))
GAUGES = 1024
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def layers(*sizes):
    parts = []
    for before, after in zip(sizes, sizes[1:]):
        parts += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*parts[:-1])


class Mixture(nn.Module):
    """Gaussians whose weights, centres and spreads follow from the soft kinds of the batch."""

    def log_det(self, spread):
        if VARIANT == "b":
            return 2 * torch.linalg.cholesky(spread).diagonal(dim1=-2, dim2=-1).log().sum(-1)
        logs = []
        for k in range(len(spread)):
            values = torch.linalg.eigvals(spread[k])
            logs.append(values.log().sum().real)
        return torch.stack(logs)

    def forward(self, z, kinds):
        mass = kinds.sum(0)
        centres = kinds.T @ z / mass[:, None]
        apart = z[:, None] - centres
        spread = torch.einsum("nk,nki,nkj->kij", kinds, apart, apart) / mass[:, None, None]
        spread = spread + 0.01 * torch.eye(z.shape[1], device=z.device)
        bent = torch.matmul(apart.transpose(0, 1), torch.linalg.inv(spread)).transpose(0, 1)
        distance = (bent * apart).sum(-1)
        log_p = (mass / len(z)).log() - 0.5 * (
            distance + self.log_det(spread) + z.shape[1] * math.log(2 * math.pi)
        )
        return -log_p.logsumexp(1)


class EngineNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = layers(GAUGES, WIDTH, WIDTH, INNER)
        self.decode = layers(INNER, WIDTH, WIDTH, GAUGES)
        self.kind = layers(INNER, 128, KINDS)
        self.mixture = Mixture()

    def forward(self, gauges):
        z = self.encode(gauges)
        energy = self.mixture(z, self.kind(z).softmax(1))
        return self.decode(z), energy


def engine_logs(count):
    load = torch.rand(count, 12)
    gauges = torch.sin(load @ torch.randn(12, GAUGES)) + 0.2 * torch.randn(count, GAUGES)
    return gauges.to(device)


def main():
    torch.manual_seed(31)
    model = EngineNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    logs = engine_logs(4 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        gauges = logs[step % 4 * BATCH : (step % 4 + 1) * BATCH]
        again, energy = model(gauges)
        loss = F.mse_loss(again, gauges) + 0.01 * energy.mean()
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
