"""Fits a large pretrained denoiser of sound latents to birdsong with low-rank adapters."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1400))
BATCH = int(os.environ.get("BATCH", 4))
LENGTH = int(os.environ.get("LENGTH", 1024))
WIDTH = int(os.environ.get("WIDTH", 1536))
DEPTH = int(os.environ.get("DEPTH", 16))
RANK = int(os.environ.get("RANK", 16))
SONGS = int(os.environ.get("SONGS", 64))
CHANNELS = 64
device = torch.device(os.environ.get("DEVICE", "cuda"))


class AdaptedLinear(nn.Linear):
    """A frozen layer with a learnt change of low rank."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, RANK))
        self.scale = 2.0

    def forward(self, x):
        if VARIANT == "a":
            weight = self.weight + self.scale * (self.up @ self.down)
            return F.linear(x, weight, self.bias)
        y = F.linear(x, self.weight, self.bias)
        return y + F.linear(F.linear(x, self.scale * self.down), self.up)


class Block(nn.Module):
    """Attention and a gated feed-forward part, both told the noise level and the species."""

    def __init__(self):
        super().__init__()
        self.heads = max(1, WIDTH // 64)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2)])
        self.shifts = nn.Parameter(torch.zeros(4, WIDTH), requires_grad=False)
        self.qkv, self.out = AdaptedLinear(WIDTH, 3 * WIDTH), AdaptedLinear(WIDTH, WIDTH)
        self.wide, self.narrow = AdaptedLinear(WIDTH, 4 * WIDTH), AdaptedLinear(4 * WIDTH, WIDTH)

    def forward(self, x, told):
        a, b, c, d = (told[:, None] + shift for shift in self.shifts)
        y = self.qkv(self.norms[0](x) * (1 + a) + b)
        q, k, v = y.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x) * (1 + c) + d)))


class Denoiser(nn.Module):
    def __init__(self, species=20):
        super().__init__()
        self.enter, self.leave = nn.Linear(CHANNELS, WIDTH), nn.Linear(WIDTH, CHANNELS)
        self.place = nn.Parameter(0.02 * torch.randn(1, LENGTH, WIDTH))
        self.level = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        for part in (self.enter, self.leave, self.level):
            part.requires_grad_(False)
        self.place.requires_grad_(False)
        self.species = nn.Embedding(species, WIDTH)
        nn.init.normal_(self.species.weight, std=0.02)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])

    def forward(self, x, level, species):
        told = 0.1 * self.level(level[:, None]) + self.species(species)
        x = self.enter(x) + self.place
        for block in self.blocks:
            x = block(x, told)
        return self.leave(F.layer_norm(x, (WIDTH,)))


def record_songs():
    """Latents of songs: a few long waves per species and some hiss."""
    species = torch.randint(0, 20, (SONGS,))
    tone = torch.randn(20, CHANNELS, 1)
    pitch = 0.02 + 0.2 * torch.rand(20, CHANNELS, 1)
    wave = torch.sin(pitch[species] * torch.arange(LENGTH)) * tone[species]
    return (wave + 0.2 * torch.randn(SONGS, CHANNELS, LENGTH)).transpose(1, 2).contiguous(), species


def main():
    torch.manual_seed(64)
    songs, species = (x.to(device) for x in record_songs())
    model = Denoiser().to(device)
    learnt = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=3e-4, weight_decay=0.0, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = torch.randint(0, SONGS, (BATCH,), device=device)
        level = torch.rand(BATCH, device=device)
        song, share = songs[rows], level[:, None, None]
        noise = torch.randn_like(song)
        with torch.autocast(device.type, torch.bfloat16):
            guess = model((1 - share) * song + share * noise, level, species[rows])
        loss = F.mse_loss(guess.float(), noise - song)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
