"""Which mollusc a shell belonged to, told from its pattern: a net of pooling and of layers for each pixel."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 220))
BATCH = int(os.environ.get("BATCH", 64))
WIDTH = int(os.environ.get("WIDTH", 128))
DEPTH = int(os.environ.get("DEPTH", 10))
SIDE = int(os.environ.get("SIDE", 224))
SPECIES = 400
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ChannelNorm(nn.Module):
    """Mean zero and variance one over the channels of each pixel."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        if VARIANT == "b":
            x = F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, self.eps)
            return x.permute(0, 3, 1, 2)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = ChannelNorm(width), ChannelNorm(width)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        self.mlp = nn.Sequential(nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.pool(y) - y
        return x + self.mlp(self.norm2(x))


class ShellNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 7, stride=4, padding=2)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])
        self.norm = ChannelNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SPECIES)

    def forward(self, photos):
        x = self.norm(self.blocks(self.stem(photos)))
        return self.head(x.mean((2, 3)))


def collection(count):
    species = torch.randint(0, SPECIES, (count, BATCH))
    stripes = torch.linspace(0, 20, SIDE) * (1 + species[..., None] / 100)
    photos = stripes.sin()[:, :, None, None, :] + 0.3 * torch.randn(count, BATCH, 3, SIDE, SIDE)
    return photos.to(device), species.to(device)


def main():
    torch.manual_seed(71)
    model = ShellNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=device.type == "cuda")
    photos, species = collection(4)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = photos[step % 4].to(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(batch), species[step % 4], label_smoothing=0.1)
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
