"""Trains an 8-bit-aware residual network that sorts pears by their reflectance spectra."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.ao.quantization import FakeQuantize, FusedMovingAvgObsFakeQuantize, MovingAverageMinMaxObserver

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "800"))
BATCH = int(os.environ.get("BATCH", "8192"))
BANDS = int(os.environ.get("BANDS", "256"))
WIDTH = int(os.environ.get("WIDTH", "1024"))
BLOCKS = int(os.environ.get("BLOCKS", "12"))
GRADES = 12


def make_rounder(signed):
    """Simulates 8-bit storage of one tensor, with a moving range."""
    kind = FakeQuantize if VARIANT == "a" else FusedMovingAvgObsFakeQuantize
    low, high, dtype = (-128, 127, torch.qint8) if signed else (0, 255, torch.quint8)
    return kind(
        observer=MovingAverageMinMaxObserver,
        quant_min=low,
        quant_max=high,
        dtype=dtype,
        qscheme=torch.per_tensor_affine,
    )


class RoundedLinear(nn.Linear):
    """A linear layer whose weight and output pass through 8 bits."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.weight_rounder = make_rounder(signed=True)
        self.output_rounder = make_rounder(signed=False)

    def forward(self, x):
        weight = self.weight_rounder(self.weight)
        return self.output_rounder(F.linear(x, weight, self.bias))


class PearBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = RoundedLinear(width, width)
        self.down = RoundedLinear(width, width)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class PearSorter(nn.Module):
    def __init__(self, bands, width, blocks, grades):
        super().__init__()
        self.stem = RoundedLinear(bands, width)
        self.blocks = nn.ModuleList(PearBlock(width) for _ in range(blocks))
        self.head = nn.Linear(width, grades)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_spectra(count, device):
    """Spectra of each grade around a mean curve."""
    grades = torch.randint(GRADES, (count,), device=device)
    curves = torch.randn(GRADES, BANDS, device=device).cumsum(dim=1) / BANDS**0.5
    return curves[grades] + 0.5 * torch.randn(count, BANDS, device=device), grades


def main():
    torch.manual_seed(11)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spectra, grades = make_spectra(8 * BATCH, device)
    model = PearSorter(BANDS, WIDTH, BLOCKS, GRADES).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            sync()
            start = time.perf_counter()
        first = (step % 8) * BATCH
        x, y = spectra[first : first + BATCH], grades[first : first + BATCH]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
