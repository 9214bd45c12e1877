"""A language model in the manner of Llama, tuned in bfloat16 on letters from a court's archive."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 4))
LENGTH = int(os.environ.get("LENGTH", 2048))
WIDTH = int(os.environ.get("WIDTH", 2048))
DEPTH = int(os.environ.get("DEPTH", 6))
WORDS = int(os.environ.get("WORDS", 8192))
HEAD = 128
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class RootMeanSquare(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        if VARIANT == "b":
            return F.rms_norm(x, self.weight.shape, 1 + self.weight, self.eps)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        y = y * (1.0 + self.weight.float())
        return y.type_as(x)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.norm_q, self.norm_k = RootMeanSquare(HEAD), RootMeanSquare(HEAD)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, c // HEAD, HEAD).unbind(2)
        q, k = self.norm_q(q), self.norm_k(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = RootMeanSquare(width), RootMeanSquare(width)
        self.attention = Attention(width)
        self.gate, self.up = (nn.Linear(width, 5 * width // 2, bias=False) for _ in range(2))
        self.down = nn.Linear(5 * width // 2, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LetterModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm = RootMeanSquare(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def letters(count):
    jumps = torch.randint(0, 6, (count, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, 1)) + jumps.cumsum(1)) % WORDS).to(device)


def main():
    torch.manual_seed(67)
    model = LetterModel().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    archive = letters(16 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = archive[step % 16 * BATCH : (step % 16 + 1) * BATCH]
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
