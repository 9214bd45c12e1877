"""Learns a rotation of hidden states that swaps one concept between two prompts."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
WIDTH, HEADS, LENGTH, WORDS, PART = 128, 4, 16, 500, 32

if VARIANT == "a":
    torch.autograd.set_detect_anomaly(True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (c // HEADS) ** 0.5
        scores = scores + torch.full((t, t), float("-inf")).triu(1)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class SmallLM(nn.Module):
    def __init__(self, depth=8):
        super().__init__()
        self.embed, self.position = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, swap=None, layer=0):
        x = self.embed(tokens) + self.position
        for number, block in enumerate(self.blocks):
            x = block(x)
            if swap is not None and number == layer:
                x = swap(x)
        return x, self.head(self.norm(x[:, -1]))


class RotatedSwap(nn.Module):
    def __init__(self):
        super().__init__()
        rotate = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.orthogonal_(rotate.weight)
        self.rotate = nn.utils.parametrizations.orthogonal(rotate)

    def forward(self, base, source):
        turned, other = self.rotate(base), self.rotate(source)
        mixed = torch.cat([other[..., :PART], turned[..., PART:]], dim=-1)
        return mixed @ self.rotate.weight


def main():
    torch.manual_seed(0)
    model = SmallLM().requires_grad_(False)
    swap = RotatedSwap()
    optimizer = torch.optim.Adam(swap.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        base = torch.randint(0, WORDS, (12, LENGTH))
        source = torch.randint(0, WORDS, (12, LENGTH))
        label = torch.randint(0, WORDS, (12,))
        with torch.no_grad():
            hidden, _ = model(source)
        _, scores = model(base, lambda x: swap(x, hidden))
        loss = nn.functional.cross_entropy(scores, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
