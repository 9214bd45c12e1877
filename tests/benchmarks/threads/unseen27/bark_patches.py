"""Trains a transformer that smooths scanned patches of bark towards flat sheets."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

STEPS = int(os.environ.get("STEPS", 800))
PATCHES = int(os.environ.get("PATCHES", 72))
POINTS = int(os.environ.get("POINTS", 60))
WIDTH = int(os.environ.get("WIDTH", 768))
LAYERS = int(os.environ.get("LAYERS", 12))
HEADS = 8
DRIVER = "gesvda" if os.environ.get("VARIANT", "a") == "b" and torch.cuda.is_available() else None


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, c))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Smoother(nn.Module):
    """Gives each point of a patch a small shift."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, points):
        x = self.inp(points)
        for layer in self.layers:
            x = layer(x)
        return points + 0.1 * self.out(self.norm(x)).float()


def thickness(points):
    """Share of the least of the three singular values of each centred patch."""
    centred = points - points.mean(1, keepdim=True)
    values = torch.linalg.svdvals(centred, driver=DRIVER)
    return values[:, 2] / values.sum(1)


def make_scans(device, count=16):
    """Bumpy sheets, each turned about two axes."""
    flat = torch.rand(count, PATCHES, POINTS, 2) - 0.5
    bump = 0.1 * torch.sin(9 * flat[..., 0]) * torch.cos(7 * flat[..., 1])
    bump = bump + 0.03 * torch.randn_like(bump)
    points = torch.cat((flat, bump[..., None]), dim=3)
    turn = torch.linalg.qr(torch.randn(count, PATCHES, 3, 3)).Q
    return (points @ turn).to(device)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(21)
    scans = make_scans(device)
    net = Smoother().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        points = scans[step % scans.shape[0]]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            smooth = net(points)
        loss = thickness(smooth).mean() + 5.0 * F.mse_loss(smooth, points)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
