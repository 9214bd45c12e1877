"""A flow-matching transformer that draws garden plans (latents of 32 x 32, eight kinds of garden)."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 280))
BATCH = int(os.environ.get("BATCH", 256))
WIDTH = int(os.environ.get("WIDTH", 384))
DEPTH = int(os.environ.get("DEPTH", 8))
CHANNELS, SIDE, PATCH, KINDS, NOISES = 4, 32, 4, 8, 1000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class FlowSchedule:
    """Noise levels of the thousand moments between a plan and pure noise."""

    def __init__(self, shift=3.0):
        level = torch.linspace(1, 1 / NOISES, NOISES)
        self.sigmas = (shift * level / (1 + (shift - 1) * level)).to(device)
        self.timesteps = self.sigmas * NOISES

    def index_of(self, timestep):
        found = (self.timesteps == timestep).nonzero()
        return found[1 if len(found) > 1 else 0].item()

    def indices(self, timesteps):
        if VARIANT == "b":
            return (self.timesteps == timesteps[:, None]).int().argmax(1)
        return [self.index_of(t) for t in timesteps]

    def mix(self, plans, noise, timesteps):
        sigma = self.sigmas[self.indices(timesteps)].view(-1, 1, 1, 1)
        return sigma * noise + (1 - sigma) * plans


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.modulate = nn.Linear(WIDTH, 6 * WIDTH)

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulate(F.silu(condition))[:, None].chunk(6, -1)
        b, n, c = x.shape
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).view(b, n, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = x + gate1 * self.out(y)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class GardenTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(CHANNELS * PATCH**2, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, WIDTH))
        self.moment = nn.Sequential(nn.Linear(256, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.kind = nn.Embedding(KINDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHANNELS * PATCH**2)

    def forward(self, x, timesteps, kinds):
        b, n = len(x), SIDE // PATCH
        x = x.view(b, CHANNELS, n, PATCH, n, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(b, n * n, -1)
        x = self.patches(x) + self.place
        waves = torch.exp(torch.arange(128, device=x.device) * (-math.log(10000) / 128))
        waves = timesteps[:, None] * waves
        condition = self.moment(torch.cat([waves.cos(), waves.sin()], 1)) + self.kind(kinds)
        for block in self.blocks:
            x = block(x, condition)
        x = self.head(self.norm(x)).view(b, n, n, CHANNELS, PATCH, PATCH)
        return x.permute(0, 3, 1, 4, 2, 5).reshape(b, CHANNELS, SIDE, SIDE)


def main():
    torch.manual_seed(41)
    model, schedule = GardenTransformer().to(device), FlowSchedule()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    kinds = torch.randint(0, KINDS, (8 * BATCH,), device=device)
    gardens = torch.randn(KINDS, CHANNELS, SIDE, SIDE, device=device)[kinds]
    gardens = gardens + 0.3 * torch.randn_like(gardens)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        plans, noise = gardens[rows], torch.randn_like(gardens[rows])
        moments = torch.sigmoid(torch.randn(BATCH, device=device))
        timesteps = schedule.timesteps[(moments * NOISES).long()]
        noisy = schedule.mix(plans, noise, timesteps)
        loss = F.mse_loss(model(noisy, timesteps, kinds[rows]), noise - plans)
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
