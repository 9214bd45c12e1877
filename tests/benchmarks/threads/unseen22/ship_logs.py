"""A language model of logbooks from sailing ships, trained in bfloat16 throughout."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
BATCH = int(os.environ.get("BATCH", 4))
LENGTH = int(os.environ.get("LENGTH", 2048))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 6))
WORDS = int(os.environ.get("WORDS", 8192))
HEAD = 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Rotary(nn.Module):
    """Turns queries and keys by angles that grow with their places."""

    def __init__(self, length, size):
        super().__init__()
        rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(length).float(), rates)
        self.cos, self.sin = angles.cos().to(device), angles.sin().to(device)

    def forward(self, x):
        n = x.shape[2]
        even, odd = x.chunk(2, -1)
        cos, sin = self.cos[:n], self.sin[:n]
        return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


class Attention(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.rotary = rotary

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, c // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q), self.rotary(k)
        if VARIANT == "b":
            q, k = q.to(v.dtype), k.to(v.dtype)
        else:
            v = v.to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, n, c).to(x.dtype))


class Layer(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(rotary)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LogModel(nn.Module):
    def __init__(self):
        super().__init__()
        rotary = Rotary(LENGTH, HEAD)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*[Layer(rotary) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.words(tokens))))


def logbooks(count):
    drift = torch.randint(0, 5, (count, LENGTH + 1)).cumsum(1)
    return ((torch.randint(0, WORDS, (count, 1)) + drift) % WORDS).to(device)


def main():
    torch.manual_seed(59)
    model = LogModel().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    books = logbooks(16 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = books[step % 16 * BATCH : (step % 16 + 1) * BATCH]
        scores = model(rows[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), rows[:, 1:].flatten())
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
