"""Trains a network that tells voices of a choir apart, each layer with a learning rate of its own."""

import os
import time

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "500"))
BATCH = int(os.environ.get("BATCH", "1536"))
BANDS = int(os.environ.get("BANDS", "128"))
WIDTH = int(os.environ.get("WIDTH", "320"))
DEPTH = int(os.environ.get("DEPTH", "4"))
EVERY = {"a": 1, "b": 100}[os.environ.get("VARIANT", "a")]
VOICES = 8


class ChoirNet(nn.Module):
    def __init__(self, bands: int, width: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(bands, width), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, VOICES))

    def forward(self, bands: torch.Tensor) -> torch.Tensor:
        return self.layers(bands)


class Concert:
    """Invented recordings: each voice has its own mean spectrum."""

    def __init__(self, bands: int, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.spectra = torch.randn(VOICES, bands, generator=self.draw)

    def listen(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        voice = torch.randint(0, VOICES, (count,), generator=self.draw)
        noise = torch.randn(count, self.spectra.shape[1], generator=self.draw)
        return self.spectra[voice] + 6.0 * noise, voice


def tail_index(weight: torch.Tensor) -> float:
    """How heavy the tail of the layer's spectrum is, by Hill's estimate on its upper half."""
    values = torch.linalg.svdvals(weight.detach()).square().flip(0)
    upper = values[len(values) // 2 :].clamp_min(1e-12)
    return 1.0 + len(upper) / float((upper / upper[0]).log().sum() + 1e-6)


class LayerRates:
    """Gives layers with a lighter tail a larger rate, around the rate of the schedule."""

    def __init__(self, optimizer: torch.optim.Optimizer, rate: float, low: float, high: float) -> None:
        self.optimizer = optimizer
        self.rate, self.low, self.high = rate, low, high

    def update(self) -> None:
        groups = self.optimizer.param_groups
        tails = [tail_index(group["params"][0]) for group in groups]
        least, most = min(tails), max(tails)
        for group, tail in zip(groups, tails):
            share = (tail - least) / max(most - least, 1e-9)
            group["lr"] = self.rate * (self.low + share * (self.high - self.low))


def layer_groups(net: ChoirNet) -> list[dict]:
    return [{"params": [layer.weight, layer.bias]} for layer in net.layers if isinstance(layer, nn.Linear)]


def main() -> None:
    torch.manual_seed(41)
    concert = Concert(BANDS, seed=42)
    net = ChoirNet(BANDS, WIDTH, DEPTH)
    optimizer = torch.optim.SGD(layer_groups(net), lr=0.02, momentum=0.9, weight_decay=1e-4)
    rates = LayerRates(optimizer, rate=0.02, low=0.8, high=1.2)

    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            begin = time.perf_counter()
        if step % EVERY == 0:
            rates.update()
        bands, voice = concert.listen(BATCH)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(bands), voice)
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
