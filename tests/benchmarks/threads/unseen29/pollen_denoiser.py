"""Trains an attention network that takes the noise out of embeddings of pollen photographs."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
BATCH = int(os.environ.get("BATCH", 16))
SIDE = int(os.environ.get("SIDE", 32))
WIDTH = int(os.environ.get("WIDTH", 768))
HEADS = int(os.environ.get("HEADS", 8))
DEPTH = int(os.environ.get("DEPTH", 8))
CHANNELS = 8


class SlicedAttention:
    """Attends to a few heads at a time."""

    def __init__(self, slice_size):
        self.slice_size = slice_size

    def __call__(self, q, k, v):
        batch, heads, tokens, dim = q.shape
        q, k, v = (t.reshape(batch * heads, tokens, dim) for t in (q, k, v))
        hidden = torch.zeros(batch * heads, tokens, dim, device=q.device, dtype=q.dtype)
        empty = torch.empty(self.slice_size, tokens, tokens, device=q.device, dtype=q.dtype)
        for i in range(batch * heads // self.slice_size):
            part = slice(i * self.slice_size, (i + 1) * self.slice_size)
            scores = torch.baddbmm(empty, q[part], k[part].transpose(1, 2), beta=0, alpha=dim**-0.5)
            hidden[part] = torch.bmm(scores.softmax(dim=-1).to(v.dtype), v[part])
        return hidden.view(batch, heads, tokens, dim)


class WholeAttention:
    def __call__(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value)


class DenoiserBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.attend = WholeAttention()

    def set_attention_slice(self, slice_size):
        self.attend = SlicedAttention(slice_size)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.proj(self.attend(q, k, v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))


class PollenDenoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(CHANNELS, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(SIDE * SIDE, WIDTH))
        self.level = nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList(DenoiserBlock(WIDTH, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.leave = nn.Linear(WIDTH, CHANNELS)

    def enable_attention_slicing(self):
        for block in self.blocks:
            block.set_attention_slice(max(1, block.heads // 2))

    def forward(self, x, level):
        x = self.enter(x) + self.place + self.level(level)
        for block in self.blocks:
            x = block(x)
        return self.leave(self.norm(x))


def main():
    torch.manual_seed(31)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    model = PollenDenoiser().to(device)
    if VARIANT == "a":
        model.enable_attention_slicing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    rough = torch.randn(64, CHANNELS, SIDE // 4, SIDE // 4, device=device)
    clean = F.interpolate(rough, scale_factor=4, mode="bilinear").flatten(2).transpose(1, 2).contiguous()

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            sync()
            start = time.perf_counter()
        first = step * BATCH % (65 - BATCH)
        x = clean[first : first + BATCH]
        level = torch.rand(BATCH, 1, 1, device=device)
        noise = torch.randn_like(x)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            guess = model((1 - level) * x + level * noise, level)
        loss = F.mse_loss(guess.float(), noise - x)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
