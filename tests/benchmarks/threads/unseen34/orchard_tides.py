"""Finetunes a patched decoder that forecasts orchard sensor series (sap flow, soil tides)."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "480"))
BATCH = int(os.environ.get("BATCH", "64"))
PATCHES = int(os.environ.get("PATCHES", "256"))
PATCH = int(os.environ.get("PATCH", "32"))
DIM = int(os.environ.get("DIM", "1024"))
LAYERS = int(os.environ.get("LAYERS", "6"))
HEADS = int(os.environ.get("HEADS", "16"))
HORIZON = int(os.environ.get("HORIZON", "64"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.scale).to(x.dtype)


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class TideLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)
        self.pre_attn, self.post_attn, self.pre_ff, self.post_ff = (RMSNorm(dim) for _ in range(4))
        self.q_norm, self.k_norm = RMSNorm(dim // heads), RMSNorm(dim // heads)
        self.per_dim = nn.Parameter(torch.zeros(dim // heads))

    def forward(self, x, cos, sin):
        n, t, d = x.shape
        q, k, v = self.qkv(self.pre_attn(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q = rotate(self.q_norm(q) * F.softplus(self.per_dim).to(q.dtype), cos, sin)
        k = rotate(self.k_norm(k), cos, sin)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, d)
        x = x + self.post_attn(self.proj(h))
        h = self.pre_ff(x)
        return x + self.post_ff(self.down(F.silu(self.gate(h)) * self.up(h)))


class TideForecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(2 * PATCH, DIM), nn.Linear(DIM, HORIZON)
        self.layers = nn.ModuleList(TideLayer(DIM, HEADS) for _ in range(LAYERS))
        half = DIM // HEADS // 2
        angles = torch.arange(PATCHES)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def load_checkpoint(self, state, torch_compile=True):
        self.load_state_dict(state)
        self.to(device)
        if torch_compile:
            print("Compiling model...")
            if VARIANT == "a":
                self = torch.compile(self)
            else:
                self.forward = torch.compile(self.forward)

    def forward(self, series, known):
        x = self.inp(torch.cat([series * known, known], -1))
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.out(x)


torch.manual_seed(0)
pretrained = {k: v.clone() for k, v in TideForecaster().state_dict().items()}
model = TideForecaster()
model.load_checkpoint(pretrained, torch_compile=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
stamps = torch.arange(PATCHES * PATCH + HORIZON, device=device) / 40.0
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    phase, level = torch.rand(2, BATCH, 1, device=device)
    waves = torch.sin(stamps * (0.5 + level) + 6.28 * phase)
    waves = waves + 0.1 * torch.randn(BATCH, len(stamps), device=device)
    series = waves[:, : PATCHES * PATCH].view(BATCH, PATCHES, PATCH)
    future = waves[:, PATCH:].unfold(1, HORIZON, PATCH)[:, :PATCHES]
    known = (torch.rand(BATCH, PATCHES, PATCH, device=device) > 0.1).float()
    with torch.autocast(device.type, torch.bfloat16):
        forecast = model(series, known)
    loss = F.smooth_l1_loss(forecast.float(), future)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if device.type == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
