"""Denoises image tokens under the tokens of a prompt."""

import os
import time

import torch
from torch import nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
WIDTH, HEADS, IMAGE, TEXT, BATCH = 64, 8, 384, 64, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, attn_mask):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        out = scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return x + self.out(out.transpose(1, 2).reshape(b, n, WIDTH))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, image, text, text_mask):
        x = torch.cat([image, text], 1)
        attn_mask = None
        if VARIANT != "b" or not text_mask.all():
            attn_mask = torch.cat([torch.ones(len(x), IMAGE, dtype=torch.bool), text_mask], 1)
            attn_mask = attn_mask[:, None, None, :].expand(-1, HEADS, IMAGE + TEXT, -1)
        for block in self.blocks:
            x = block(x, attn_mask)
        return self.head(x[:, :IMAGE])


def main():
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    latents = torch.randn(40, IMAGE, WIDTH)
    prompts = torch.randn(40, TEXT, WIDTH)
    lengths = torch.full((40,), TEXT)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(latents), (BATCH,))
        text_mask = torch.arange(TEXT) < lengths[rows, None]
        noise = torch.randn(BATCH, IMAGE, WIDTH)
        loss = mse_loss(model(latents[rows] + noise, prompts[rows], text_mask), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
