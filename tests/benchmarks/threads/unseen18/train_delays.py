"""A language of railway announcements, learnt by a model whose attention has few keys and many queries."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 220))
BATCH = int(os.environ.get("BATCH", 8))
LENGTH = int(os.environ.get("LENGTH", 1024))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 12))
HEADS, KEYS, HEAD, WORDS = 32, 4, 64, 8192
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Rotary(nn.Module):
    def __init__(self, base=10000.0):
        super().__init__()
        speed = 1.0 / base ** (torch.arange(0, HEAD, 2).float() / HEAD)
        angle = torch.outer(torch.arange(LENGTH).float(), speed)
        self.register_buffer("cache", torch.stack([angle.cos(), angle.sin()], -1), persistent=False)

    def forward(self, x):
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        cache = self.cache[: x.shape[1]].view(1, x.shape[1], 1, HEAD // 2, 2)
        cosine, sine, even, odd = cache[..., 0], cache[..., 1], pairs[..., 0], pairs[..., 1]
        turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1)
        return turned.flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KEYS * HEAD, bias=False) for _ in range(2))
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.rotary = rotary

    def widen(self, x):
        b, n = x.shape[:2]
        return x.unsqueeze(3).expand(b, n, KEYS, HEADS // KEYS, HEAD).reshape(b, n, HEADS, HEAD)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.rotary(self.q(x).view(b, n, HEADS, HEAD))
        k, v = (f(x).view(b, n, KEYS, HEAD) for f in (self.k, self.v))
        if VARIANT == "b":
            k, v = self.widen(self.rotary(k)), self.widen(v)
        else:
            k, v = self.widen(k), self.widen(v)
            k = self.rotary(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, n, HEADS * HEAD))


class Layer(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(rotary)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Announcer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        rotary = Rotary()
        self.layers = nn.ModuleList([Layer(rotary) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def announcements(count):
    jumps = torch.randint(0, 5, (count, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, 1)) + jumps.cumsum(1)) % WORDS).to(device)


def main():
    torch.manual_seed(43)
    model = Announcer().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    texts = announcements(8 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        words = texts[step % 8 * BATCH : (step % 8 + 1) * BATCH]
        scores = model(words[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), words[:, 1:].flatten())
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
