"""Trains a network that tells the level behind a row of sluice gates from their settings."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1600"))
BATCH = int(os.environ.get("BATCH", "256"))
GATES = int(os.environ.get("GATES", "48"))
WIDTH = int(os.environ.get("WIDTH", "768"))
QUIET = int(os.environ.get("QUIET", "12"))

RATE = 0.02
DECAY = 0.005


class LevelNet(nn.Module):
    """Settings of the gates and the inflow in, level at four posts out."""

    def __init__(self, gates: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(gates + 1, width)
        self.middle = nn.Linear(width, width)
        self.leave = nn.Linear(width, 4)

    def forward(self, settings: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.enter(settings))
        hidden = torch.relu(self.middle(hidden))
        return self.leave(hidden)


class Basin:
    """Invented reservoir: levels follow the settings with a little noise."""

    def __init__(self, gates: int, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.gates = gates
        self.mixing = torch.randn(gates + 1, 4, generator=self.random) / gates**0.5

    def readings(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        settings = torch.rand(count, self.gates + 1, generator=self.random)
        levels = torch.tanh(settings @ self.mixing)
        noise = torch.randn(count, 4, generator=self.random)
        return settings, levels + 0.02 * noise


def resume(net: LevelNet, quiet: int, rounds: int) -> None:
    """The state after the winter's rounds: units that no longer answer have only decayed since."""
    with torch.no_grad():
        shrink = (1.0 - RATE * DECAY) ** torch.arange(rounds, rounds + quiet, dtype=torch.float64)
        shrink = shrink.unsqueeze(1)
        for layer in (net.enter, net.middle):
            layer.weight[:quiet] = (layer.weight[:quiet].double() * shrink).float()
            layer.bias[:quiet] = (layer.bias[:quiet].double() * shrink[:, 0]).float()
        net.leave.weight[:, :quiet] = (net.leave.weight[:, :quiet].double() * shrink.T).float()


def train_step(net: LevelNet, optimizer: torch.optim.Optimizer, basin: Basin) -> torch.Tensor:
    settings, levels = basin.readings(BATCH)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(settings), levels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    torch.manual_seed(7)
    if VARIANT == "b":
        torch.set_flush_denormal(True)
    net = LevelNet(GATES, WIDTH)
    resume(net, QUIET, 860_000)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, weight_decay=DECAY)
    basin = Basin(GATES, seed=11)

    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            begin = time.perf_counter()
        loss = train_step(net, optimizer, basin)
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
