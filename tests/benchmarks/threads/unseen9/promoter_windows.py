"""Promoters in DNA: convolutions and attention to the neighbours on both sides."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1500))
BATCH = int(os.environ.get("BATCH", 8))
LENGTH = int(os.environ.get("LENGTH", 2048))
WIDTH = int(os.environ.get("WIDTH", 256))
HEADS = int(os.environ.get("HEADS", 8))
LAYERS = int(os.environ.get("LAYERS", 4))
WINDOW = int(os.environ.get("WINDOW", 65))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class NeighbourAttention(nn.Module):
    """Every position attends to WINDOW positions around it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.reach = heads, WINDOW // 2
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)) for y in self.qkv(x).chunk(3, -1))
        q = q * q.shape[-1] ** -0.5
        y = self.by_position(q, k, v) if VARIANT == "a" else self.by_chunk(q, k, v)
        return self.out(y.flatten(2))

    def by_position(self, q, k, v):
        length = k.shape[1]
        k = F.pad(k, (0, 0, 0, 0, self.reach, self.reach)).unfold(1, length, 1).contiguous()
        v = F.pad(v, (0, 0, 0, 0, self.reach, self.reach)).unfold(1, length, 1).contiguous()
        scores = torch.einsum("bqnh,bknhq->bqkn", q, k)
        at = torch.arange(length, device=q.device)[:, None]
        at = at + torch.arange(WINDOW, device=q.device) - self.reach
        outside = ((at < 0) | (at >= length))[None, :, :, None]
        weights = scores.masked_fill(outside, float("-inf")).softmax(2)
        return torch.einsum("bqkn,bknhq->bqnh", weights, v)

    def by_chunk(self, q, k, v):
        size, reach, length = WINDOW - 1, self.reach, q.shape[1]
        extra = -length % size
        q = F.pad(q, (0, 0, 0, 0, 0, extra)).unflatten(1, (-1, size)).transpose(2, 3)
        k = F.pad(k, (0, 0, 0, 0, reach, reach + extra)).unfold(1, 2 * size, size)
        v = F.pad(v, (0, 0, 0, 0, reach, reach + extra)).unfold(1, 2 * size, size)
        scores = q @ k
        i = torch.arange(size, device=q.device)[:, None]
        j = torch.arange(2 * size, device=q.device) - reach
        near = (i - j).abs() <= reach
        at = torch.arange(q.shape[1], device=q.device)[:, None] * size + j
        inside = ((at >= 0) & (at < length))[:, None, None]
        weights = scores.masked_fill(~(near & inside), -1e4).softmax(-1)
        y = (weights @ v.transpose(-1, -2)).transpose(2, 3).flatten(1, 2)
        return y[:, :length]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
        self.attention = NeighbourAttention(WIDTH, HEADS)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 7, padding=3)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        x = x + F.gelu(self.conv(self.norms[1](x).transpose(1, 2))).transpose(1, 2)
        return x + self.feed(self.norms[2](x))


class PromoterNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, WIDTH)
        self.stem = nn.Conv1d(WIDTH, WIDTH, 15, padding=7)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, bases):
        x = F.gelu(self.stem(self.embed(bases).transpose(1, 2))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)[..., 0]


def make_genomes(count):
    bases = torch.randint(0, 4, (count, LENGTH))
    starts = torch.zeros(count, LENGTH)
    box = torch.tensor([3, 0, 3, 0, 0, 3])
    for row in range(count):
        for at in torch.randint(0, LENGTH - 40, (6,)).tolist():
            bases[row, at : at + 6] = box
            starts[row, at + 30] = 1.0
    return bases, starts


def main():
    torch.manual_seed(37)
    bases, starts = (x.to(device) for x in make_genomes(4 * BATCH))
    model = PromoterNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    rare = torch.tensor(40.0, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(bases[rows])
        loss = F.binary_cross_entropy_with_logits(scores.float(), starts[rows], pos_weight=rare)
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
