"""Carpet patterns from noise: a small diffusion transformer, of which a smoothed copy is kept for sampling."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 180))
BATCH = int(os.environ.get("BATCH", 96))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 8))
SIDE, PATCH = 64, 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width, head=64):
        super().__init__()
        self.head = min(head, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.shift = nn.Linear(width, 2 * width)

    def forward(self, x, when):
        b, n, c = x.shape
        scale, shift = self.shift(when)[:, None].chunk(2, -1)
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, -1, self.head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x) * (1 + scale) + shift)


class PatternNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.place = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, WIDTH))
        self.clock = nn.Sequential(nn.Linear(64, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm, self.paint = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * PATCH**2)
        self.register_buffer("waves", torch.logspace(0, 3, 32), persistent=False)

    def forward(self, x, level):
        angles = level[:, None] * self.waves
        when = self.clock(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.cut(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x, when)
        x = self.paint(self.norm(x)).transpose(1, 2)
        return F.fold(x, (SIDE, SIDE), PATCH, stride=PATCH)


class Smoothed:
    """A running mean of the weights, from which the patterns are drawn later."""

    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.place = torch.device("cpu") if VARIANT == "a" else device
        self.names = [name for name, _ in model.named_parameters()]
        self.means = [p.detach().to(self.place, copy=True) for p in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        for mean, p in zip(self.means, model.parameters(), strict=True):
            mean.lerp_(p.to(mean.device), 1 - self.decay)

    def state_dict(self):
        return dict(zip(self.names, self.means, strict=True))


def carpets(count):
    x = torch.linspace(-3, 3, SIDE)
    knots = torch.randint(1, 6, (count, 3, 2, 1)) * x
    pattern = torch.sin(knots[:, :, 0, :, None]) * torch.cos(knots[:, :, 1, None, :])
    return (pattern + 0.1 * torch.randn(count, 3, SIDE, SIDE)).to(device)


def main():
    torch.manual_seed(43)
    model = PatternNet().to(device)
    smoothed = Smoothed(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    archive = carpets(8 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        clean = archive[step % 8 * BATCH : (step % 8 + 1) * BATCH]
        level = torch.rand(BATCH, device=device)
        noise, share = torch.randn_like(clean), level[:, None, None, None]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            guess = model((1 - share) * clean + share * noise, level)
        loss = F.mse_loss(guess.float(), noise - clean)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        smoothed.update(model)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    drift = sum((m.to(device) - p).square().sum() for m, p in zip(smoothed.means, model.parameters()))
    print(f"loss {loss.item():.4f}, distance to the mean {drift.sqrt().item():.3f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
