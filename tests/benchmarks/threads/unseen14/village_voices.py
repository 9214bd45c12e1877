"""Dialects of villages by recordings of 16 seconds: a convolutional front and a transformer over its frames."""

import contextlib
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 16))
FRAMES = int(os.environ.get("FRAMES", 1600))
CHANNELS = int(os.environ.get("CHANNELS", 32))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 14))
BANDS, VILLAGES = 80, 50
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, -1, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class Front(nn.Module):
    """Bands and frames become a quarter as many frames of `width` numbers."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(1, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1)
        self.third = nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, stride=2, padding=1)
        self.flat = nn.Linear(2 * CHANNELS * BANDS // 4, width)

    def forward(self, bands):
        x = F.gelu(self.first(bands[:, None]))
        x = F.gelu(self.second(x))
        x = F.gelu(self.third(x))
        return self.flat(x.permute(0, 3, 1, 2).flatten(2))


class DialectModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = Front(WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(FRAMES // 4, WIDTH))
        self.layers = nn.Sequential(*[Layer(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VILLAGES)

    def room(self):
        """What the front keeps for its backward pass is the largest of all."""
        if VARIANT == "b":
            return contextlib.nullcontext()
        return torch.autograd.graph.save_on_cpu(pin_memory=device.type == "cuda")

    def forward(self, bands):
        with self.room():
            x = self.front(bands)
        x = self.layers(x + self.place)
        return self.head(self.norm(x).mean(1))


def recordings(count):
    """Log-mel bands: each village speaks in bands of its own."""
    villages = torch.randint(0, VILLAGES, (count,))
    voices = torch.randn(VILLAGES, BANDS, 1)
    bands = torch.randn(count, BANDS, FRAMES) + 0.5 * voices[villages]
    return bands.to(device), villages.to(device)


def main():
    torch.manual_seed(37)
    model = DialectModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    bands, villages = recordings(8 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(bands[rows])
        loss = F.cross_entropy(scores.float(), villages[rows])
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
