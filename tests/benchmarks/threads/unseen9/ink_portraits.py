"""Portraits in ink: a latent diffusion model adapted to a few dozen pictures."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))
BATCH = int(os.environ.get("BATCH", 4))
SIDE = int(os.environ.get("SIDE", 512))
WIDTH = int(os.environ.get("WIDTH", 320))
ENCODER = int(os.environ.get("ENCODER", 64))
PICTURES = int(os.environ.get("PICTURES", 48))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, times=0):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, 1, 1))
        self.second = nn.Sequential(nn.GroupNorm(8, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, 1, 1))
        self.past = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.time = nn.Linear(times, outputs) if times else None

    def forward(self, x, t=None):
        y = self.first(x)
        if self.time is not None:
            y = y + self.time(t)[:, :, None, None]
        return self.past(x) + self.second(y)


class PictureEncoder(nn.Module):
    """The autoencoder's first half: pictures to the mean and spread of their latents."""

    def __init__(self, width):
        super().__init__()
        layers, inputs = [nn.Conv2d(3, width, 3, 1, 1)], width
        for k, outputs in enumerate((width, 2 * width, 4 * width, 4 * width)):
            layers += [Residual(inputs, outputs), Residual(outputs, outputs)]
            if k < 3:
                layers.append(nn.Conv2d(outputs, outputs, 3, 2, 1))
            inputs = outputs
        layers += [nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, 8, 3, 1, 1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, pictures):
        mean, logvar = self.layers(pictures).chunk(2, 1)
        return mean, (0.5 * logvar.clamp(-30, 20)).exp()


class Attention(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(8, width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        y = self.qkv(self.norm(x).flatten(2).transpose(1, 2))
        q, k, v = y.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(y).transpose(1, 2).reshape(x.shape)


class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.times = nn.Sequential(nn.Linear(64, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.inward = nn.Conv2d(4, width, 3, 1, 1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for k in range(2):
            self.down.append(Residual(width << k, width << k, 4 * width))
            self.down.append(nn.Conv2d(width << k, width << (k + 1), 3, 2, 1))
        self.middle = nn.ModuleList([Residual(4 * width, 4 * width, 4 * width) for _ in range(2)])
        self.attention = nn.ModuleList([Attention(4 * width) for _ in range(2)])
        for k in (1, 0):
            self.up.append(nn.ConvTranspose2d(width << (k + 1), width << k, 2, 2))
            self.up.append(Residual(width << (k + 1), width << k, 4 * width))
        self.out = nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, x, t):
        waves = t[:, None] * torch.exp(-9.2 * torch.linspace(0, 1, 32, device=t.device))
        t = self.times(torch.cat([waves.sin(), waves.cos()], 1))
        x, kept = self.inward(x), []
        for residual, shrink in zip(self.down[::2], self.down[1::2], strict=True):
            kept.append(residual(x, t))
            x = shrink(kept[-1])
        for residual, attention in zip(self.middle, self.attention, strict=True):
            x = attention(residual(x, t))
        for grow, residual in zip(self.up[::2], self.up[1::2], strict=True):
            x = residual(torch.cat([grow(x), kept.pop()], 1), t)
        return self.out(x)


def draw_pictures(count):
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    wave = torch.sin(torch.rand(count, 1, 1) * 30 * x + torch.rand(count, 1, 1) * 30 * y)
    head = torch.sigmoid(40 * (0.6 - torch.hypot(x, y * 0.8)))
    return (wave * head)[:, None].expand(-1, 3, -1, -1).contiguous()


def main():
    torch.manual_seed(53)
    encoder = PictureEncoder(ENCODER).to(device).requires_grad_(False).eval()
    model = Denoiser(WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    pictures = draw_pictures(PICTURES).to(device)
    kept = torch.linspace(1 - 1e-4, 1 - 0.02, 1000, device=device).cumprod(0)
    if VARIANT == "b":
        with torch.no_grad():
            stored = [encoder(batch) for batch in pictures.split(BATCH)]
        means, spreads = (torch.cat(parts) for parts in zip(*stored, strict=True))
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = torch.randperm(PICTURES)[:BATCH].to(device)
        if VARIANT == "b":
            mean, spread = means[rows], spreads[rows]
        else:
            with torch.no_grad():
                mean, spread = encoder(pictures[rows])
        latents = 0.18 * (mean + spread * torch.randn_like(mean))
        t = torch.randint(0, 1000, (BATCH,), device=device)
        noise, share = torch.randn_like(latents), kept[t][:, None, None, None]
        with torch.autocast(device.type, torch.bfloat16):
            guess = model(share.sqrt() * latents + (1 - share).sqrt() * noise, t)
        loss = F.mse_loss(guess.float(), noise)
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
