"""Density of ocean currents over a reef, by a neural spline flow with coupling layers."""

import math
import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "800"))
DIM = 24
BINS = 8
LAYERS = 4
HIDDEN = 64
BATCH = 1024
BOUND = 3.0
MIN_SIZE = 1e-3
device = torch.device("cpu")


def knots(raw):
    """Bin edges in [-BOUND, BOUND] from unnormalised sizes, and the sizes."""
    sizes = MIN_SIZE + (1 - MIN_SIZE * BINS) * F.softmax(raw, dim=-1)
    if VARIANT == "a":
        edges = F.pad(torch.cumsum(sizes, dim=-1), (1, 0))
        edges = 2 * BOUND * edges - BOUND
        edges[..., 0] = -BOUND
        edges[..., -1] = BOUND
        return edges, edges[..., 1:] - edges[..., :-1]
    sizes = 2 * BOUND * sizes
    return F.pad(torch.cumsum(sizes, dim=-1), (1, 0)) - BOUND, sizes


def quadratic_spline(x, raw_w, raw_h, raw_d):
    edges_x, widths = knots(raw_w)
    edges_y, heights = knots(raw_h)
    slopes = MIN_SIZE + F.softplus(raw_d)
    where = torch.searchsorted(edges_x[..., 1:-1].detach().contiguous(), x.detach()[..., None])
    x0 = edges_x.gather(-1, where)[..., 0]
    w = widths.gather(-1, where)[..., 0]
    y0 = edges_y.gather(-1, where)[..., 0]
    h = heights.gather(-1, where)[..., 0]
    delta = h / w
    d0 = slopes.gather(-1, where)[..., 0]
    d1 = slopes.gather(-1, where + 1)[..., 0]
    t = (x - x0) / w
    tt = t * (1 - t)
    denom = delta + (d0 + d1 - 2 * delta) * tt
    y = y0 + h * (delta * t.pow(2) + d0 * tt) / denom
    top = delta.pow(2) * (d1 * t.pow(2) + 2 * delta * tt + d0 * (1 - t).pow(2))
    return y, torch.log(top) - 2 * torch.log(denom)


def spline_with_tails(x, raw_w, raw_h, raw_d):
    """Inside [-BOUND, BOUND] the spline, outside it the identity."""
    inside = (x >= -BOUND) & (x <= BOUND)
    edge = math.log(math.exp(1 - MIN_SIZE) - 1)
    raw_d = F.pad(raw_d, (1, 1), value=edge)
    if VARIANT == "a":
        y = torch.where(inside, torch.zeros_like(x), x)
        logdet = torch.zeros_like(x)
        y[inside], logdet[inside] = quadratic_spline(
            x[inside], raw_w[inside, :], raw_h[inside, :], raw_d[inside, :]
        )
        return y, logdet
    keep = inside.to(x.dtype)
    y, logdet = quadratic_spline(x * keep, raw_w, raw_h, raw_d)
    return y * keep + x * (1 - keep), logdet * keep


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.half = DIM // 2
        self.net = nn.Sequential(
            nn.Linear(self.half, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, self.half * (3 * BINS - 1)),
        )

    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        if self.flip:
            a, b = b, a
        raw = self.net(a).view(-1, self.half, 3 * BINS - 1)
        raw_w, raw_h, raw_d = raw.split([BINS, BINS, BINS - 1], dim=-1)
        b, logdet = spline_with_tails(b, raw_w / HIDDEN**0.5, raw_h / HIDDEN**0.5, raw_d)
        parts = (b, a) if self.flip else (a, b)
        return torch.cat(parts, dim=-1), logdet.sum(-1)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(5)
    mix = torch.randn(DIM, DIM, generator=gen) / DIM**0.5
    currents = torch.tanh(torch.randn(20000, DIM, generator=gen) @ mix) * 2
    currents = currents + 0.3 * torch.randn(20000, DIM, generator=gen)
    flow = nn.ModuleList([Coupling(i % 2 == 1) for i in range(LAYERS)]).to(device)
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-4)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        z = currents[torch.randint(0, len(currents), (BATCH,), generator=gen)].to(device)
        total = 0
        for layer in flow:
            z, logdet = layer(z)
            total = total + logdet
        loss = (0.5 * z.pow(2).sum(-1) - total).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * took / max(1, STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
