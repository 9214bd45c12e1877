"""A small language model of ships' weather notes, with dropout since there are few of them."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 550))
BATCH = int(os.environ.get("BATCH", 16))
LENGTH = int(os.environ.get("LENGTH", 512))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 8))
DROPOUT = float(os.environ.get("DROPOUT", 0.1))
WORDS = 4096
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Attention(nn.Module):
    def __init__(self, width, head=64):
        super().__init__()
        self.heads = width // head
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop_weights, self.drop = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)
        self.quick = hasattr(F, "scaled_dot_product_attention") and (DROPOUT == 0.0 or VARIANT == "b")
        self.register_buffer("before", torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool)))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if self.quick:
            rate = DROPOUT if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
            scores = scores.masked_fill(~self.before[:n, :n], float("-inf"))
            y = self.drop_weights(F.softmax(scores, dim=-1)) @ v
        return self.drop(self.out(y.transpose(1, 2).reshape(b, n, c)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(DROPOUT)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class NoteModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.drop(self.words(tokens) + self.place.weight)
        return self.head(self.norm(self.blocks(x)))


def notes(count):
    jumps = torch.randint(0, 5, (count, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, 1)) + jumps.cumsum(1)) % WORDS).to(device)


def main():
    torch.manual_seed(61)
    model = NoteModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    log = notes(16 * BATCH)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = log[step % 16 * BATCH : (step % 16 + 1) * BATCH]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(rows[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
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
