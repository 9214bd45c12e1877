"""Trains a network that finds the corners of roofs in edge maps of skylines."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("STEPS", "700"))
BATCH = int(os.environ.get("BATCH", "8"))
SIZE = int(os.environ.get("SIZE", "96"))
EDGES = int(os.environ.get("EDGES", "8"))
WIDTH = int(os.environ.get("WIDTH", "8"))
UNROLLED = os.environ.get("VARIANT", "a") == "b"


def skylines(count: int, size: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of boxes before a noisy sky, and maps of their upper left corners at half the size."""
    pictures = 0.2 * torch.rand(count, 1, size, size, generator=draw)
    corners = torch.zeros(count, 1, size, size)
    for number in range(count):
        for _ in range(5):
            top, left = torch.randint(2, size - 20, (2,), generator=draw).tolist()
            height, width = torch.randint(8, 18, (2,), generator=draw).tolist()
            pictures[number, 0, top : top + height, left : left + width] += 0.5
            corners[number, 0, top, left] = 1.0
    return pictures, F.max_pool2d(corners, 3, stride=2, padding=1)


class EdgeBank(nn.Module):
    """Fixed filters whose answers are the maps that the corner net looks at."""

    def __init__(self, edges: int, draw: torch.Generator) -> None:
        super().__init__()
        filters = torch.randn(edges, 1, 5, 5, generator=draw)
        filters = filters - filters.mean((2, 3), keepdim=True)
        self.register_buffer("filters", filters)

    @torch.no_grad()
    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.conv2d(pictures, self.filters, padding=2))


def running_top(maps: torch.Tensor, dim: int) -> torch.Tensor:
    """Along dim, the largest answer so far."""
    if not UNROLLED:
        return torch.cummax(maps, dim=dim).values
    lines = list(maps.unbind(dim))
    for place in range(1, len(lines)):
        lines[place] = torch.maximum(lines[place], lines[place - 1])
    return torch.stack(lines, dim)


@torch.no_grad()
def corner_maps(maps: torch.Tensor) -> torch.Tensor:
    """What lies above, below, left and right of each place, beside the maps themselves."""
    flipped_rows, flipped_columns = maps.flip(2), maps.flip(3)
    above, left = running_top(maps, 2), running_top(maps, 3)
    below, right = running_top(flipped_rows, 2).flip(2), running_top(flipped_columns, 3).flip(3)
    return torch.cat([maps, above + left, below + right], 1)


class CornerNet(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return self.layers(maps)


def main() -> None:
    torch.manual_seed(21)
    draw = torch.Generator().manual_seed(22)
    pictures, corners = skylines(96, SIZE, draw)
    bank = EdgeBank(EDGES, draw)
    net = CornerNet(3 * EDGES, WIDTH)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    weight = torch.tensor(20.0)

    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            begin = time.perf_counter()
        chosen = torch.randint(0, len(pictures), (BATCH,), generator=draw)
        answers = net(corner_maps(bank(pictures[chosen])))
        loss = F.binary_cross_entropy_with_logits(answers, corners[chosen], pos_weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
