"""Generates image tokens: an encoder and a decoder over masked patches."""

import os
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 60))
WIDTH, HEADS, DEPTH, PATCHES, PATCH, BATCH = 1024, 16, 16, 256, 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class MaskedGenerator(nn.Module):
    def __init__(self, grad_checkpointing):
        super().__init__()
        self.grad_checkpointing = grad_checkpointing
        self.enter = nn.Linear(PATCH, WIDTH)
        self.mask = nn.Parameter(torch.zeros(WIDTH))
        self.place = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.leave = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PATCH))

    def forward(self, patches, hidden):
        x = torch.where(hidden[..., None], self.mask, self.enter(patches)) + self.place
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.grad_checkpointing else block(x)
        return self.leave(x)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = MaskedGenerator(grad_checkpointing=VARIANT == "a").to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randn(8, BATCH, PATCHES, PATCH, device=device)
    for step in range(STEPS):
        if step == 10:
            torch.cuda.synchronize()
            start = time.perf_counter()
        patches = images[step % 8]
        hidden = torch.rand(BATCH, PATCHES, device=device) < 0.7
        with torch.autocast("cuda", dtype=torch.bfloat16):
            error = (model(patches, hidden) - patches).square().mean(-1)
        loss = (error * hidden).sum() / hidden.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")


if __name__ == "__main__":
    main()
