"""Trains a flow that learns the density of light spectra reflected by kelp beds."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "800"))
BATCH = int(os.environ.get("BATCH", "512"))
BANDS = int(os.environ.get("BANDS", "160"))
FLOWS = int(os.environ.get("FLOWS", "6"))
WIDTH = int(os.environ.get("WIDTH", "192"))


class MixBands(nn.Module):
    """A mixing of all bands whose matrix is kept as a lower, an upper and a diagonal part."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        turn = torch.linalg.qr(torch.randn(bands, bands))[0]
        swap, lower, upper = torch.linalg.lu(turn)
        diagonal = upper.diagonal().clone()
        self.register_buffer("swap", swap)
        self.register_buffer("sign", diagonal.sign())
        self.register_buffer("below", torch.tril(torch.ones(bands, bands), -1))
        self.register_buffer("unit", torch.eye(bands))
        self.lower = nn.Parameter(lower)
        self.upper = nn.Parameter(upper.triu(1))
        self.scale = nn.Parameter(diagonal.abs().log())

    def matrix(self) -> torch.Tensor:
        lower = self.lower * self.below + self.unit
        upper = self.upper * self.below.T + torch.diag(self.sign * self.scale.exp())
        return self.swap @ lower @ upper

    def forward(self, spectra: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        volume = self.scale.sum() if VARIANT == "b" else sum(self.scale)
        return spectra @ self.matrix().T, volume


class HalfByHalf(nn.Module):
    """Shifts and stretches one half of the bands by what a small net makes of the other."""

    def __init__(self, bands: int, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(bands // 2, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, bands),
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, spectra: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept, moved = spectra.chunk(2, 1)
        stretch, shift = self.net(kept).chunk(2, 1)
        stretch = F.logsigmoid(stretch + 2.0)
        return torch.cat([kept, (moved + shift) * stretch.exp()], 1), stretch.sum(1)


class KelpFlow(nn.Module):
    def __init__(self, bands: int, flows: int, width: int) -> None:
        super().__init__()
        self.mixes = nn.ModuleList(MixBands(bands) for _ in range(flows))
        self.halves = nn.ModuleList(HalfByHalf(bands, width) for _ in range(flows))

    def surprise(self, spectra: torch.Tensor) -> torch.Tensor:
        """Nats per band."""
        volume = torch.zeros(len(spectra))
        for mix, half in zip(self.mixes, self.halves):
            spectra, change = mix(spectra)
            volume = volume + change
            spectra, change = half(spectra)
            volume = volume + change
        density = -0.5 * (spectra.square() + math.log(2 * math.pi)).sum(1)
        return -(density + volume).mean() / spectra.shape[1]


def reflected(count: int, bands: int, draw: torch.Generator) -> torch.Tensor:
    waves = torch.linspace(0.0, 1.0, bands)
    peak = torch.rand(count, 1, generator=draw)
    width = 0.05 + 0.2 * torch.rand(count, 1, generator=draw)
    curve = torch.exp(-(((waves - peak) / width) ** 2))
    return curve + 0.1 * torch.randn(count, bands, generator=draw)


def main() -> None:
    torch.manual_seed(51)
    draw = torch.Generator().manual_seed(52)
    spectra = reflected(20_000, BANDS, draw)
    flow = KelpFlow(BANDS, FLOWS, WIDTH)
    optimizer = torch.optim.Adam(flow.parameters(), lr=3e-4)

    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            begin = time.perf_counter()
        batch = spectra[torch.randint(0, len(spectra), (BATCH,), generator=draw)]
        optimizer.zero_grad()
        loss = flow.surprise(batch)
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
