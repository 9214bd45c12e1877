"""Finetunes a small video diffusion transformer (rectified flow on latents) on reels of fjords."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "280"))
BATCH = int(os.environ.get("BATCH", "4"))
TOKENS = int(os.environ.get("TOKENS", "4096"))
DIM = int(os.environ.get("DIM", "1024"))
LAYERS = int(os.environ.get("LAYERS", "16"))
HEADS = int(os.environ.get("HEADS", "16"))
LATENT = int(os.environ.get("LATENT", "128"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


class ReelBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU("tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Linear(dim, 6 * dim)

    def forward(self, x, cond):
        n, t, d = x.shape
        s1, c1, g1, s2, c2, g2 = self.ada(F.silu(cond)).chunk(6, -1)
        h = self.qkv(modulate(self.norm1(x), s1, c1)).view(n, t, 3, self.heads, d // self.heads)
        q, k, v = h.permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + g1[:, None] * self.proj(h)
        return x + g2[:, None] * self.mlp(modulate(self.norm2(x), s2, c2))


class ReelTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(LATENT, DIM), nn.Linear(DIM, LATENT)
        self.pos = nn.Parameter(torch.randn(1, TOKENS, DIM) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.blocks = nn.ModuleList(ReelBlock(DIM, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.gradient_checkpointing = False
        self.register_buffer("freqs", torch.exp(-torch.arange(128) * 0.072), persistent=False)

    def enable_gradient_checkpointing(self):
        self.gradient_checkpointing = True

    def forward(self, x, t):
        angles = 1000 * t[:, None] * self.freqs
        cond = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x = self.inp(x) + self.pos
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, cond, use_reentrant=False)
            else:
                x = block(x, cond)
        return self.out(self.norm(x))


torch.manual_seed(0)
model = ReelTransformer().to(device).train()
if VARIANT == "a":
    model.enable_gradient_checkpointing()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
reels = torch.randn(4 * BATCH, TOKENS, LATENT, device=device)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    clean = reels[(step % 4) * BATCH : (step % 4 + 1) * BATCH]
    noise = torch.randn_like(clean)
    t = torch.sigmoid(torch.randn(BATCH, device=device))
    noisy = (1 - t[:, None, None]) * clean + t[:, None, None] * noise
    with torch.autocast(device.type, torch.bfloat16):
        velocity = model(noisy, t)
    loss = F.mse_loss(velocity.float(), noise - clean)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
if device.type == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
