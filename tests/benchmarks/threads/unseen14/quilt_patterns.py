"""New patterns for quilts: a denoising transformer of 32 x 32 pictures, whose smoothed weights draw them."""

import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
BATCH = int(os.environ.get("BATCH", 256))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 6))
SIDE, PATCH = 32, 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulate = nn.Linear(width, 4 * width)

    def forward(self, x, when):
        b, n, c = x.shape
        shift1, scale1, shift2, scale2 = self.modulate(when)[:, None].chunk(4, dim=-1)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).view(b, n, 3, -1, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3 * PATCH**2, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, WIDTH))
        self.when = nn.Sequential(nn.Linear(64, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3 * PATCH**2)
        self.register_buffer("waves", torch.exp(-torch.arange(32) / 4.0))

    def forward(self, pictures, times):
        angles = 1000 * times[:, None] * self.waves
        when = self.when(torch.cat((angles.sin(), angles.cos()), 1))
        x = self.embed(F.unfold(pictures, PATCH, stride=PATCH).transpose(1, 2)) + self.place
        for layer in self.layers:
            x = layer(x, when)
        return F.fold(self.head(self.norm(x)).transpose(1, 2).float(), SIDE, PATCH, stride=PATCH)


class Smoothed:
    """The same network with the running mean of its weights, which is the one that is sampled from."""

    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.network = copy.deepcopy(model).to(device if VARIANT == "b" else "cpu")
        self.network.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for mean, now in zip(self.network.parameters(), model.parameters(), strict=True):
            mean.lerp_(now.to(mean.device), 1 - self.decay)


def quilts(count):
    """Checks of random period, phase and colours."""
    at = torch.arange(SIDE)
    period = torch.randint(3, 9, (count, 2, 1))
    rows, columns = ((at + torch.randint(0, 8, (count, 2, 1))) // period % 2).unbind(1)
    checks = (rows[:, :, None] ^ columns[:, None, :])[:, None].float()
    first, second = torch.rand(2, count, 3, 1, 1)
    return (2 * (checks * first + (1 - checks) * second) - 1).to(device)


def main():
    torch.manual_seed(71)
    model = Denoiser().to(device)
    smoothed = Smoothed(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    pictures = quilts(8 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        clean = pictures[step % 8 * BATCH : (step % 8 + 1) * BATCH]
        noise, times = torch.randn_like(clean), torch.rand(len(clean), device=device)
        mixed = torch.lerp(clean, noise, times[:, None, None, None])
        with torch.autocast(device.type, dtype=torch.bfloat16):
            flow = model(mixed, times)
        loss = F.mse_loss(flow, noise - clean)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        smoothed.update(model)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
