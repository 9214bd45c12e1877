"""Lightweight super-resolution with shifted windows, four groups of six blocks."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 900))
BATCH = int(os.environ.get("BATCH", 16))
SIDE, WINDOW, DIM, HEADS, SCALE = 64, 8, 60, 6, 2
device = torch.device(os.environ.get("DEVICE", "cuda"))


def partition(x):
    b, h, w, c = x.shape
    x = x.view(b, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, c)


def unpartition(windows, h, w):
    x = windows.view(-1, h // WINDOW, w // WINDOW, WINDOW, WINDOW, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, windows.shape[-1])


class WindowBlock(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def calculate_mask(self, h, w, where):
        img_mask = torch.zeros((1, h, w, 1), device=where)
        cuts = (slice(0, -WINDOW), slice(-WINDOW, -self.shift), slice(-self.shift, None))
        region = 0
        for rows in cuts:
            for columns in cuts:
                img_mask[:, rows, columns, :] = region
                region += 1
        windows = partition(img_mask).squeeze(-1)
        attn_mask = windows.unsqueeze(1) - windows.unsqueeze(2)
        attn_mask = attn_mask.masked_fill(attn_mask != 0, -100.0)
        return attn_mask.masked_fill(attn_mask == 0, 0.0)

    def attend(self, windows, mask):
        n, t, _ = windows.shape
        q, k, v = self.qkv(windows).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (q * (DIM // HEADS) ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            scores = scores.view(-1, len(mask), HEADS, t, t) + mask[None, :, None]
        weights = scores.view(n, HEADS, t, t).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, t, DIM))

    def forward(self, x):
        _, h, w, _ = x.shape
        y, mask = self.norm1(x), None
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
            where = x.device if VARIANT == "b" else "cpu"
            mask = self.calculate_mask(h, w, where).to(x.device)
        y = unpartition(self.attend(partition(y), mask), h, w)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class Group(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[WindowBlock(WINDOW // 2 * (i % 2)) for i in range(6)])
        self.conv = nn.Conv2d(DIM, DIM, 3, padding=1)

    def forward(self, x):
        y = self.blocks(x).permute(0, 3, 1, 2)
        return x + self.conv(y).permute(0, 2, 3, 1)


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, DIM, 3, padding=1)
        self.groups = nn.Sequential(*[Group() for _ in range(4)])
        self.last = nn.Conv2d(DIM, 3 * SCALE**2, 3, padding=1)

    def forward(self, x):
        x = self.first(x).permute(0, 2, 3, 1)
        return F.pixel_shuffle(self.last((x + self.groups(x)).permute(0, 3, 1, 2)), SCALE)


def main():
    torch.manual_seed(0)
    model = Upscaler().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.99))
    large = torch.rand(4, BATCH, 3, SIDE * SCALE, SIDE * SCALE, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        target = large[step % 4]
        loss = F.l1_loss(model(F.avg_pool2d(target, SCALE)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
