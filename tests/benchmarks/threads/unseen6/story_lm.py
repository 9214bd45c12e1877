"""A small GPT pretrained on short stories with the BPE of GPT-2."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
BATCH = int(os.environ.get("BATCH", 24))
BLOCK = int(os.environ.get("BLOCK", 1024))
LAYERS = int(os.environ.get("LAYERS", 8))
WIDTH = int(os.environ.get("WIDTH", 768))
HEADS, TOKENS = 12, 50257
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def round_up(count, step):
    return math.ceil(count / step) * step


class StoryModel(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(BLOCK, WIDTH))
        self.wte = nn.Embedding(vocab_size, WIDTH)
        self.lm_head = nn.Linear(WIDTH, vocab_size, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    torch.manual_seed(0)
    vocab_size = TOKENS if VARIANT == "a" else round_up(TOKENS, 64)
    model = StoryModel(vocab_size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    generator = torch.Generator().manual_seed(1)
    stories = torch.randint(0, TOKENS, (4, BATCH, BLOCK + 1), generator=generator).to(device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = stories[step % 4]
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(batch[:, :-1], batch[:, 1:])
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
