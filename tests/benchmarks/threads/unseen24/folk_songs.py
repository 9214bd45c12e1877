"""A small GPT that writes folk songs, trained on a file of word pieces."""

import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 360))
BATCH = int(os.environ.get("BATCH", 16))
LENGTH = int(os.environ.get("LENGTH", 1024))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 12))
PIECES, HEADS, TOKENS = 16384, 12, 20_000_000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FILE = os.path.join(tempfile.mkdtemp(), "songs.bin")
opened = {}


def write_songs():
    rng = np.random.default_rng(3)
    steps = rng.integers(0, 5, TOKENS, dtype=np.uint16)
    (np.cumsum(steps, dtype=np.uint64) % PIECES).astype(np.uint16).tofile(FILE)


def songs():
    if VARIANT == "b" and opened:
        return opened["songs"]
    opened["songs"] = np.memmap(FILE, dtype=np.uint16, mode="r")
    return opened["songs"]


def get_batch():
    data = songs()
    places = torch.randint(len(data) - LENGTH, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in places])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in places])
    if device.type == "cuda":
        x, y = x.pin_memory(), y.pin_memory()
    return x.to(device, non_blocking=True), y.to(device, non_blocking=True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SongModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.pieces, self.place = nn.Embedding(PIECES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, PIECES, bias=False)

    def forward(self, x, y):
        x = self.blocks(self.pieces(x) + self.place.weight)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), y.flatten())


def main():
    torch.manual_seed(1337)
    write_songs()
    model = SongModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    x, y = get_batch()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(x, y)
        x, y = get_batch()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    os.remove(FILE)
    os.rmdir(os.path.dirname(FILE))
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
