"""Trains a small vision transformer that tells night moths apart by their photographs."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "550"))
BATCH = int(os.environ.get("BATCH", "128"))
IMAGE = int(os.environ.get("IMAGE", "224"))
PATCH = int(os.environ.get("PATCH", "16"))
WIDTH = int(os.environ.get("WIDTH", "768"))
DEPTH = int(os.environ.get("DEPTH", "12"))
HEADS = int(os.environ.get("HEADS", "12"))
PHOTOS = int(os.environ.get("PHOTOS", "1024"))
SPECIES = 200
REST = 0.4

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class MothBlock(nn.Module):
    def __init__(self, width, heads, rest):
        super().__init__()
        self.heads = heads
        self.rest = rest
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def look(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))

    def think(self, x):
        return self.fc2(F.gelu(self.fc1(self.norm2(x))))

    def add_branch(self, x, inner):
        b = x.shape[0]
        awake = max(int(b * (1 - self.rest)), 1)
        rows = torch.randperm(b, device=x.device)[:awake]
        scale = b / awake
        if VARIANT == "a":
            gate = torch.zeros(b, 1, 1, device=x.device).index_fill_(0, rows, scale)
            return x + inner(x) * gate
        part = inner(x.index_select(0, rows))
        return torch.index_add(x, 0, rows, part.to(x.dtype), alpha=scale)

    def forward(self, x):
        x = self.add_branch(x, self.look)
        return self.add_branch(x, self.think)


class MothNet(nn.Module):
    def __init__(self):
        super().__init__()
        cells = (IMAGE // PATCH) ** 2
        self.patches = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.place = nn.Parameter(torch.randn(1, cells, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(MothBlock(WIDTH, HEADS, REST) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SPECIES)

    def forward(self, images):
        b = images.shape[0]
        side = IMAGE // PATCH
        x = images.view(b, 3, side, PATCH, side, PATCH).permute(0, 2, 4, 1, 3, 5)
        x = self.patches(x.reshape(b, side * side, 3 * PATCH * PATCH)).float() + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def main():
    torch.manual_seed(11)
    photos = torch.randint(0, 256, (PHOTOS, 3, IMAGE, IMAGE), dtype=torch.uint8, device=device)
    kinds = torch.randint(0, SPECIES, (PHOTOS,), device=device)
    net = MothNet().to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.05, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        optimizer.param_groups[0]["lr"] = 3e-4 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        rows = torch.randint(0, PHOTOS, (BATCH,), device=device)
        images = photos.index_select(0, rows).float().div_(127.5).sub_(1)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = net(images)
        loss = F.cross_entropy(logits.float(), kinds.index_select(0, rows), label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - started
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
