"""Marks of tasters from chemical analyses of wines: a deep network of layers of Chebyshev polynomials."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
BATCH = int(os.environ.get("BATCH", 16384))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 6))
DEGREE = int(os.environ.get("DEGREE", 4))
MEASURES, MARKS = 96, 20
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class PolynomialLayer(nn.Module):
    """Each output is a sum of polynomials of the inputs, one polynomial for each pair."""

    def __init__(self, inputs, outputs):
        super().__init__()
        scale = 1 / (inputs * (DEGREE + 1)) ** 0.5
        self.weights = nn.Parameter(scale * torch.randn(inputs, outputs, DEGREE + 1))
        self.register_buffer("orders", torch.arange(DEGREE + 1.0))

    def basis(self, x):
        """The values of T0 to T`DEGREE` at each input, in the last dimension."""
        if VARIANT == "b":
            return torch.cos(torch.acos(x.clamp(-1 + 1e-6, 1 - 1e-6))[..., None] * self.orders)
        values = torch.ones(*x.shape, DEGREE + 1, device=x.device)
        values[..., 1] = x
        for k in range(2, DEGREE + 1):
            values[..., k] = 2 * x * values[..., k - 1].clone() - values[..., k - 2].clone()
        return values

    def forward(self, x):
        return torch.einsum("bid,iod->bo", self.basis(torch.tanh(x)), self.weights)


class TasteModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(MEASURES, WIDTH)
        self.layers = nn.ModuleList([PolynomialLayer(WIDTH, WIDTH) for _ in range(DEPTH)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, MARKS)

    def forward(self, measures):
        x = self.embed(measures)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


def wines(count):
    measures = torch.randn(count, MEASURES)
    mixes = torch.randn(MEASURES, MARKS) / MEASURES**0.5
    return measures.to(device), torch.sin(2 * measures @ mixes).to(device)


def main():
    torch.manual_seed(61)
    model = TasteModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    measures, marks = wines(8 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        loss = F.mse_loss(model(measures[rows]), marks[rows])
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
