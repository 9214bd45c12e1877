"""Tunes a language model with a large vocabulary on instructions."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 60))
WORDS, WIDTH, HEADS, DEPTH, LENGTH, BATCH, PIECE = 32_000, 1536, 12, 12, 512, 8, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.silu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def loss_of(logits, labels):
    logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    if VARIANT == "a":
        return nn.functional.cross_entropy(logits, labels)
    parts = zip(logits.split(PIECE), labels.split(PIECE), strict=True)
    losses = [nn.functional.cross_entropy(x, y, reduction="none") for x, y in parts]
    return torch.cat(losses).mean()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = LanguageModel().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    text = torch.randint(0, WORDS, (64, BATCH, LENGTH), device=device)
    for step in range(STEPS):
        if step == 10:
            torch.cuda.synchronize()
            start = time.perf_counter()
        tokens = text[step % 64]
        loss = loss_of(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")


if __name__ == "__main__":
    main()
