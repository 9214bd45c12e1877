"""Tells which masts of a weather network have an iced sensor, from the readings of all masts."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 480))
MASTS, READINGS, HOURS = 280, 96, 200


def make_network():
    """Masts in the plane, linked where near; an iced sensor reads its neighbours' wind too low."""
    g = torch.Generator().manual_seed(23)
    place = torch.rand(MASTS, 2, generator=g)
    links = torch.cdist(place, place) < 0.15
    weather = torch.randn(HOURS, 8, generator=g)
    spread = torch.randn(8, 2, generator=g)
    wind = torch.sin(weather @ spread @ place.T + weather[:, :1])
    iced = torch.rand(HOURS, MASTS, generator=g) < 0.2
    mix = torch.randn(1, READINGS, generator=g)
    shown = (wind - 0.8 * iced)[..., None] * mix + 0.3 * torch.randn(HOURS, MASTS, READINGS, generator=g)
    return links, shown, iced.long()


class Listening(nn.Module):
    """One ear: each mast weighs what its neighbours say."""

    def __init__(self, come, go, drop=0.1):
        super().__init__()
        self.go, self.drop = go, drop
        self.weight = nn.Parameter(torch.empty(come, go))
        self.score = nn.Parameter(torch.empty(2 * go, 1))
        nn.init.xavier_uniform_(self.weight, gain=1.414)
        nn.init.xavier_uniform_(self.score, gain=1.414)

    def affinity(self, h):
        n = h.shape[0]
        if VARIANT == "a":
            left, right = h.repeat_interleave(n, dim=0), h.repeat(n, 1)
            both = torch.cat([left, right], dim=1).view(n, n, 2 * self.go)
            return F.leaky_relu((both @ self.score).squeeze(2), 0.2)
        left, right = h @ self.score[: self.go], h @ self.score[self.go :]
        return F.leaky_relu(left + right.T, 0.2)

    def forward(self, x, links):
        h = x @ self.weight
        e = self.affinity(h).masked_fill(~links, -9e15)
        share = F.dropout(F.softmax(e, dim=1), self.drop, self.training)
        return share @ h


class MastNet(nn.Module):
    def __init__(self, width=8, ears=6):
        super().__init__()
        self.into = nn.Sequential(nn.Linear(READINGS, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.ears = nn.ModuleList([Listening(256, width) for _ in range(ears)])
        self.last = Listening(width * ears, 16)
        self.head = nn.Linear(16 + 256, 2)

    def forward(self, x, links):
        own = self.into(x)
        heard = torch.cat([F.elu(ear(own, links)) for ear in self.ears], dim=1)
        return self.head(torch.cat([F.elu(self.last(heard, links)), own], dim=1))


def main():
    torch.manual_seed(23)
    links, shown, iced = make_network()
    model = MastNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=5e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        hour = int(torch.randint(0, HOURS, ()))
        loss = F.cross_entropy(model(shown[hour], links), iced[hour])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
