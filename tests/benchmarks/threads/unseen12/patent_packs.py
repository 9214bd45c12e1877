"""A small language model of patent claims, several of which are packed into each row."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 350))
ROWS = int(os.environ.get("ROWS", 8))
LENGTH = int(os.environ.get("LENGTH", 2048))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 8))
WORDS = int(os.environ.get("WORDS", 8192))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
attend = torch.compile(flex_attention)


def claims_apart(claims):
    """Each word sees the words before it, of its own claim."""

    def visible(b, h, i, j):
        return (i >= j) & (claims[b, i] == claims[b, j])

    rows, length = claims.shape
    return create_block_mask(visible, rows, None, length, length, device=claims.device)


class Attention(nn.Module):
    def __init__(self, width, head=64):
        super().__init__()
        self.head = head
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, claims, mask):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, c // self.head, self.head).permute(2, 0, 3, 1, 4)
        if mask is None:
            mask = claims_apart(claims)
        y = attend(q, k, v, block_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, claims, mask):
        x = x + self.attention(self.norm1(x), claims, mask)
        return x + self.mlp(self.norm2(x))


class ClaimModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, claims):
        x = self.words(tokens) + self.place.weight[: tokens.shape[1]]
        mask = claims_apart(claims) if VARIANT == "b" else None
        for layer in self.layers:
            x = layer(x, claims, mask)
        return self.head(self.norm(x))


def pack():
    """Rows of words, and to which claim each belongs."""
    starts = torch.rand(ROWS, LENGTH) < 1 / 256
    claims = starts.cumsum(1)
    tokens = (torch.arange(LENGTH) * 3 + claims * 17 + torch.randint(0, 5, (ROWS, LENGTH))) % WORDS
    return tokens, claims


def main():
    torch.manual_seed(53)
    model = ClaimModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    packs = [pack() for _ in range(8)]
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        tokens, claims = (x.to(device) for x in packs[step % 8])
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(tokens, claims)
        loss = F.cross_entropy(scores[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
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
