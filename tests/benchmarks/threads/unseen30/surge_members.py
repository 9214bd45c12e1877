"""Trains a storm-surge network whose members are scored together as an ensemble."""

import os
import time

import torch
import torch.nn as nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "450"))
BATCH = int(os.environ.get("BATCH", "3"))
MEMBERS = int(os.environ.get("MEMBERS", "48"))
CELLS = int(os.environ.get("CELLS", "24"))
HIDDEN = int(os.environ.get("HIDDEN", "10"))


class SurgeNet(nn.Module):
    """Maps wind and pressure maps, with noise of its own per member, to water levels."""

    def __init__(self, hidden):
        super().__init__()
        self.enter = nn.Conv2d(3, hidden, 3, padding=1)
        self.middle = nn.Conv2d(hidden, hidden, 3, padding=1)
        self.style = nn.Linear(8, hidden)
        self.leave = nn.Conv2d(hidden, 1, 3, padding=1)

    def forward(self, maps, noise):
        batch, members = noise.shape[:2]
        x = torch.relu(self.enter(maps))
        x = x[:, None] * (1 + self.style(noise))[..., None, None]
        x = torch.relu(self.middle(x.flatten(0, 1)))
        return self.leave(x).view(batch, members, *maps.shape[-2:])


def spread_all(members):
    """Mean absolute difference between the members at each cell."""
    count = members.shape[1]
    gaps = (members.unsqueeze(1) - members.unsqueeze(2)).abs()
    return gaps.sum(dim=(1, 2)) / (count * (count - 1))


def spread_ranked(members):
    count = members.shape[1]
    ranked = members.sort(dim=1).values
    rank = torch.arange(1, count + 1, dtype=members.dtype).view(1, -1, 1, 1)
    return 2 * ((2 * rank - count - 1) * ranked).sum(dim=1) / (count * (count - 1))


class EnsembleScore(nn.Module):
    """The fair score of an ensemble: its error less half of its spread."""

    def forward(self, members, observed):
        error = (members - observed.unsqueeze(1)).abs().mean(dim=1)
        if VARIANT == "a":
            spread = spread_all(members)
        else:
            spread = spread_ranked(members)
        return (error - spread / 2).mean()


def make_storms(count):
    maps = torch.randn(count, 3, CELLS, CELLS)
    maps = nn.functional.avg_pool2d(maps, 5, 1, 2) * 5
    levels = maps[:, 0] * maps[:, 1] - 0.5 * maps[:, 2]
    return maps, levels + 0.2 * torch.randn_like(levels)


def main():
    torch.manual_seed(23)
    maps, levels = make_storms(64)
    model = SurgeNet(HIDDEN)
    score = EnsembleScore()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    picks = torch.randint(0, len(maps), (STEPS, BATCH))
    noise = torch.randn(STEPS, BATCH, MEMBERS, 8)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        members = model(maps[picks[step]], noise[step])
        loss = score(members, levels[picks[step]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
