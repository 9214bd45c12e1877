"""Trains a network that predicts properties of glass from the recipe of its melt."""

import os
import time

import numpy as np
import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "1800"))
BATCH = int(os.environ.get("BATCH", "512"))
OXIDES = int(os.environ.get("OXIDES", "40"))
WIDTH = int(os.environ.get("WIDTH", "512"))
DEPTH = int(os.environ.get("DEPTH", "4"))
CHECKED = os.environ.get("VARIANT", "a") == "a"


def family(array: object) -> str:
    """Which library an array belongs to."""
    if isinstance(array, np.ndarray):
        return "numpy"
    if isinstance(array, torch.Tensor):
        return f"torch on {array.device.type}"
    return type(array).__module__


def same_family(*arrays: object) -> bool:
    """Whether all arrays belong together, so that they can be multiplied with each other."""
    first, *others = [family(array) for array in arrays]
    return all(other == first for other in others)


def require_same(place: str, *arrays: object) -> None:
    if not same_family(*arrays):
        kinds = ", ".join(family(array) for array in arrays)
        raise TypeError(f"{place}: arrays of different families: {kinds}")


class Affine(torch.autograd.Function):
    """x W' + b, with its gradient written out."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        if CHECKED:
            require_same("affine, forward", x, weight, bias)
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, x, weight.T)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        if CHECKED:
            require_same("affine, backward", x, weight, grad)
        return grad @ weight, grad.T @ x, grad.sum(0)


class AffineLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Affine.apply(x, self.weight, self.bias)


class GlassNet(nn.Module):
    """Shares of the oxides in, density, softening point and refraction out."""

    def __init__(self, oxides: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [oxides] + [width] * depth
        self.hidden = nn.ModuleList(AffineLayer(a, b) for a, b in zip(sizes, sizes[1:]))
        self.out = AffineLayer(width, 3)

    def forward(self, shares: torch.Tensor) -> torch.Tensor:
        for layer in self.hidden:
            shares = torch.tanh(layer(shares))
        return self.out(shares)


class Furnace:
    """Invented melts."""

    def __init__(self, oxides: int, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.law = torch.randn(oxides, 3, generator=self.draw)

    def melts(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        shares = torch.rand(count, len(self.law), generator=self.draw)
        shares = shares / shares.sum(1, keepdim=True)
        return shares, torch.sin(3.0 * shares @ self.law)


def main() -> None:
    torch.manual_seed(61)
    furnace = Furnace(OXIDES, seed=62)
    net = GlassNet(OXIDES, WIDTH, DEPTH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            begin = time.perf_counter()
        shares, measured = furnace.melts(BATCH)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(shares), measured)
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
