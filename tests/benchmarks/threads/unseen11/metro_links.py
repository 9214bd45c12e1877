"""Guesses which stations of a city's transport get a direct line, from the lines it has now."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 210))
CITIES, STATIONS, BATCH, MOST = 160, 96, 12, 15


def make_cities():
    """Stations in the plane, linked where near; a tenth of the links is hidden."""
    g = torch.Generator().manual_seed(8)
    place = torch.rand(CITIES, STATIONS, 2, generator=g)
    reach = 0.12 + 0.06 * torch.rand(CITIES, 1, 1, generator=g)
    near = torch.cdist(place, place) < reach
    near &= ~torch.eye(STATIONS, dtype=torch.bool)
    hidden = torch.rand(CITIES, STATIONS, STATIONS, generator=g) < 0.05
    hidden = hidden | hidden.transpose(1, 2)
    riders = place.sum(-1, keepdim=True) + 0.3 * torch.randn(CITIES, STATIONS, 1, generator=g)
    return (
        (near & ~hidden).long(),
        near.float(),
        torch.cat([riders, near.float().sum(-1, keepdim=True) / 8], -1),
    )


def shared_stops(links):
    """How many stations two stations are both linked to, and in how many ways one gets there in three."""
    if VARIANT == "a":
        two = links @ links
        return two, two @ links
    two = links.float() @ links.float()
    return two.long(), (two @ links.float()).long()


class LinkNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.into = nn.Linear(2, width)
        self.layers = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(3)])
        self.two, self.three = nn.Embedding(MOST + 1, 4), nn.Embedding(MOST + 1, 4)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.mix = nn.Linear(9, 1)

    def forward(self, links, stations):
        two, three = shared_stops(links)
        weights = links.float() / links.sum(-1, keepdim=True).clamp(min=1)
        x = self.into(stations)
        for layer in self.layers:
            x = F.relu(layer(torch.cat([x, weights @ x], -1)))
        match = self.query(x) @ self.key(x).transpose(1, 2)
        near = [match[..., None], self.two(two.clamp(max=MOST)), self.three(three.clamp(max=MOST))]
        return self.mix(torch.cat(near, -1))[..., 0]


def main():
    torch.manual_seed(8)
    links, wanted, stations = make_cities()
    model = LinkNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, CITIES, (BATCH,))
        scores = model(links[rows], stations[rows])
        loss = F.binary_cross_entropy_with_logits(scores, wanted[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
