"""Trains a transformer on sonar mosaics to fill in patches that were hidden from it."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 430))
BATCH = int(os.environ.get("BATCH", 6))
TOKENS = int(os.environ.get("TOKENS", 3072))
WINDOW = int(os.environ.get("WINDOW", 64))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 8))
PATCH = int(os.environ.get("PATCH", 192))
FULL_LAYERS = (3, 7)


class MosaicAttention(nn.Module):
    def __init__(self, width, heads, windowed):
        super().__init__()
        self.heads = heads
        self.windowed = windowed
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x, allowed):
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if not self.windowed:
            out = F.scaled_dot_product_attention(q, k, v)
        elif allowed is not None:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        else:
            out = self.by_window(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, width))

    def by_window(self, q, k, v):
        batch, heads, tokens, dim = q.shape
        count = tokens // WINDOW

        def fold(t):
            return t.reshape(batch, heads, count, WINDOW, dim).transpose(1, 2).flatten(0, 1)

        out = F.scaled_dot_product_attention(fold(q), fold(k), fold(v))
        return out.view(batch, count, heads, WINDOW, dim).transpose(1, 2).reshape(batch, heads, tokens, dim)


class Block(nn.Module):
    def __init__(self, width, heads, windowed):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = MosaicAttention(width, heads, windowed)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, window_mask):
        x = x + self.attn(self.norm1(x), window_mask)
        return x + self.mlp(self.norm2(x))


class MosaicEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        heads = max(1, WIDTH // 64)
        self.blocks = nn.ModuleList(Block(WIDTH, heads, i not in FULL_LAYERS) for i in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, PATCH)

    def make_mask(self, device):
        window = torch.arange(TOKENS, device=device) // WINDOW
        return window[:, None] == window[None, :]

    def forward(self, patches):
        window_mask = self.make_mask(patches.device) if VARIANT == "a" else None
        x = self.embed(patches) + self.place
        for block in self.blocks:
            x = block(x, window_mask)
        return self.head(self.norm(x))


def main():
    torch.manual_seed(11)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    model = MosaicEncoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    base = torch.randn(16, TOKENS, PATCH, device=device)
    pool = 0.7 * base.roll(1, dims=1) + 0.7 * base
    hidden = (torch.rand(16, TOKENS, 1, device=device) < 0.4).float()

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            sync()
            start = time.perf_counter()
        first = (step * BATCH) % (16 - BATCH + 1) if BATCH < 16 else 0
        patches, cover = pool[first : first + BATCH], hidden[first : first + BATCH]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            guess = model(patches * (1 - cover))
        loss = ((guess.float() - patches).square() * cover).sum() / (cover.sum() * PATCH)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
