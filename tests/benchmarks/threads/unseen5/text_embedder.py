"""Contrastive training of a text encoder with rotary positions, compiled."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2200))
BATCH = int(os.environ.get("BATCH", 48))
DEPTH = int(os.environ.get("DEPTH", 12))
WIDTH, HEADS, LENGTH, VOCAB = 768, 12, 64, 30522
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Rotary(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        inverse = base ** (-torch.arange(0, dim, 2).float() / dim)
        self.register_buffer("inverse", inverse, persistent=False)
        self.seqlen, self.cos, self.sin = 0, None, None

    def update(self, seqlen, where, dtype):
        angles = torch.outer(torch.arange(seqlen, device=where).float(), self.inverse)
        self.seqlen = seqlen
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def stale(self, seqlen):
        if seqlen > self.seqlen or self.cos is None:
            return True
        return VARIANT == "a" and self.training and self.cos.is_inference()

    def forward(self, x):
        if self.stale(x.shape[-2]):
            self.update(x.shape[-2], x.device, x.dtype)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.rotary = Rotary(WIDTH // HEADS)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q), self.rotary(k)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.silu(self.gate(x)) * self.up(x)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(DEPTH)])

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x.mean(1).float(), dim=-1)


def main():
    torch.manual_seed(0)
    encoder = Encoder().to(device)
    compiled = torch.compile(encoder)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-5, fused=device.type == "cuda")
    tokens = torch.randint(0, VOCAB, (4, 2 * BATCH, LENGTH), device=device)
    labels = torch.arange(BATCH, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            vectors = compiled(tokens[step % 4])
        queries, documents = vectors.chunk(2)
        loss = F.cross_entropy(queries @ documents.t() / 0.07, labels)
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
