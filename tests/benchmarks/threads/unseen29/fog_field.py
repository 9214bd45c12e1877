"""Trains a field of fog density and colour from rays, first along even steps and then where the fog is."""

import os
import time

import torch
import torch.nn as nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 600))
RAYS = int(os.environ.get("RAYS", 8192))
SAMPLES = int(os.environ.get("SAMPLES", 256))
WIDTH = int(os.environ.get("WIDTH", 128))
LAYERS = int(os.environ.get("LAYERS", 4))
BANDS = int(os.environ.get("BANDS", 8))


def between_all(edges, cdf, u):
    """The ends of the interval of each draw, in edges and in the running sum."""
    inside = u[:, None, :] >= cdf[:, :, None]

    def ends(values):
        low = torch.max(torch.where(inside, values[..., None], values[:, :1, None]), dim=-2)[0]
        high = torch.min(torch.where(~inside, values[..., None], values[:, -1:, None]), dim=-2)[0]
        return low, high

    return *ends(edges), *ends(cdf)


def between_sorted(edges, cdf, u):
    above = torch.searchsorted(cdf, u, right=True)
    low = (above - 1).clamp(min=0)
    high = above.clamp(max=cdf.shape[-1] - 1)
    return edges.gather(1, low), edges.gather(1, high), cdf.gather(1, low), cdf.gather(1, high)


def resample(edges, weights, count):
    """Draws new edges where the weights are large."""
    weights = weights + 1e-5
    pdf = weights / weights.sum(-1, keepdim=True)
    zero, one = torch.zeros_like(pdf[:, :1]), torch.ones_like(pdf[:, :1])
    cdf = torch.cat([zero, pdf.cumsum(-1)[:, :-1], one], dim=-1)
    u = torch.arange(count + 1, device=edges.device) / (count + 1)
    u = (u + torch.rand(len(edges), count + 1, device=edges.device) / (count + 1)).clamp(max=1 - 1e-6)
    find = between_all if VARIANT == "a" else between_sorted
    e0, e1, c0, c1 = find(edges, cdf, u.contiguous())
    part = torch.nan_to_num((u - c0) / (c1 - c0), nan=0.0).clamp(0, 1)
    return e0 + part * (e1 - e0)


class FogField(nn.Module):
    def __init__(self):
        super().__init__()
        layers, size = [], 6 * BANDS
        for _ in range(LAYERS):
            layers += [nn.Linear(size, WIDTH), nn.ReLU(inplace=True)]
            size = WIDTH
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(size, 4)
        self.register_buffer("bands", 2.0 ** torch.arange(BANDS))

    def forward(self, places):
        waves = (places[..., None] * self.bands).flatten(-2)
        return self.head(self.body(torch.cat([waves.sin(), waves.cos()], dim=-1)))


def composite(out, edges):
    """Colour of each ray, and the weight of each step on it."""
    gap = edges[:, 1:] - edges[:, :-1]
    optical = nn.functional.softplus(out[..., 3].float()) * gap
    before = torch.cat([torch.zeros_like(gap[:, :1]), optical[:, :-1].cumsum(-1)], dim=-1)
    weights = (1 - torch.exp(-optical)) * torch.exp(-before)
    return (weights[..., None] * torch.sigmoid(out[..., :3].float())).sum(1), weights


def render(field, origin, heading, edges):
    middle = 0.5 * (edges[:, 1:] + edges[:, :-1])
    places = origin[:, None] + middle[..., None] * heading[:, None]
    with torch.autocast(edges.device.type, dtype=torch.bfloat16):
        out = field(places)
    return composite(out, edges)


def main():
    torch.manual_seed(29)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    field = FogField().to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3, fused=device.type == "cuda")
    origins = torch.randn(16, RAYS, 3, device=device) * 0.1
    headings = nn.functional.normalize(torch.randn(16, RAYS, 3, device=device), dim=-1)
    colours = 0.5 + 0.4 * torch.sin(3 * headings)
    even = torch.linspace(0.1, 3.0, SAMPLES + 1, device=device).expand(RAYS, -1).contiguous()

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            sync()
            start = time.perf_counter()
        origin, heading, colour = (t[step % 16] for t in (origins, headings, colours))
        rough, weights = render(field, origin, heading, even)
        with torch.no_grad():
            edges = resample(even, weights, SAMPLES)
        fine, _ = render(field, origin, heading, edges)
        loss = (fine - colour).square().mean() + 0.1 * (rough - colour).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
