"""Roofs segmented in aerial images by attention within windows."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 900))
BATCH = int(os.environ.get("BATCH", 16))
SIDE = int(os.environ.get("SIDE", 512))
DEPTH = int(os.environ.get("DEPTH", 12))
WIDTH, HEADS, WINDOW, CLASSES = 96, 3, 8, 6
device = torch.device(os.environ.get("DEVICE", "cuda"))


def init_seeds(seed):
    torch.manual_seed(seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    if VARIANT == "b":
        torch.utils.deterministic.fill_uninitialized_memory = False


def partition(x):
    b, h, w, c = x.shape
    x = x.view(b, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, c)


def reverse(windows, shape):
    b, h, w, c = shape
    x = windows.view(b, h // WINDOW, w // WINDOW, WINDOW, WINDOW, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)


class WindowBlock(nn.Module):
    def __init__(self, width, heads, shift):
        super().__init__()
        self.heads, self.shift = heads, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width), nn.Dropout(0.1)
        )  # fmt: skip

    def forward(self, x):
        y = self.norm1(x)
        if self.shift:
            y = y.roll((-self.shift, -self.shift), (1, 2))
        windows = partition(y)
        n, t, c = windows.shape
        q, k, v = self.qkv(windows).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
        y = reverse(self.drop(self.proj(mixed)), x.shape)
        if self.shift:
            y = y.roll((self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class RoofNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        shifts = [0 if i % 2 == 0 else WINDOW // 2 for i in range(DEPTH)]
        self.blocks = nn.ModuleList([WindowBlock(WIDTH, HEADS, shift) for shift in shifts])
        self.norm = nn.LayerNorm(WIDTH)
        self.classify = nn.Linear(WIDTH, CLASSES * 16)

    def forward(self, images):
        x = self.patches(images).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        x = self.classify(self.norm(x)).permute(0, 3, 1, 2)
        return F.pixel_shuffle(x, 4)


def main():
    init_seeds(7)
    model = RoofNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    images = torch.rand(2, BATCH, 3, SIDE, SIDE, device=device)
    roofs = torch.randint(0, CLASSES, (2, BATCH, SIDE, SIDE), device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(images[step % 2])
        scores = logits.permute(0, 2, 3, 1).flatten(0, 2)
        loss = F.cross_entropy(scores, roofs[step % 2].flatten())
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
