"""DDPM: a small U-Net predicts the noise; exponential moving average of the weights every step.

Healthy: compute-bound (convolutions).
"""

import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = "compute-bound"


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.time = nn.Linear(temb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.temb = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64))
        self.inp = nn.Conv2d(3, c, 3, padding=1)
        self.down1, self.down2 = ResBlock(c, c, 64), ResBlock(c, 2 * c, 64)
        self.mid = ResBlock(2 * c, 2 * c, 64)
        self.up2, self.up1 = ResBlock(4 * c, c, 64), ResBlock(2 * c, c, 64)
        self.out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t):
        t = self.temb(t[:, None])
        d1 = self.down1(self.inp(x), t)
        d2 = self.down2(F.avg_pool2d(d1, 2), t)
        m = self.mid(F.avg_pool2d(d2, 2), t)
        u2 = self.up2(torch.cat([F.interpolate(m, scale_factor=2.0), d2], 1), t)
        u1 = self.up1(torch.cat([F.interpolate(u2, scale_factor=2.0), d1], 1), t)
        return self.out(u1)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, size = (64, 64) if device == "cuda" else (4, 32)
    model = UNet(64 if device == "cuda" else 32).to(device)
    ema = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    alpha_bar = torch.linspace(0.999, 0.01, 1000, device=device)
    images = torch.rand(batch, 3, size, size, device=device)
    stamps = []
    for step in range(70):
        stamps.append(time.perf_counter())
        t = torch.randint(1000, (batch,), device=device)
        noise = torch.randn_like(images)
        a = alpha_bar[t][:, None, None, None]
        loss = F.mse_loss(model(a.sqrt() * images + (1 - a).sqrt() * noise, t / 1000), noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters(), strict=True):
                e.lerp_(p, 0.001)
    print("loss", loss.item())
    print(f"step_ms={(stamps[-1] - stamps[20]) * 1000 / (len(stamps) - 21):.3f}")


main()
