"""Trains a segmentation network that marks wetlands in aerial tiles."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

STEPS = int(os.environ.get("STEPS", 700))
BATCH = int(os.environ.get("BATCH", 16))
SIZE = int(os.environ.get("SIZE", 128))
WIDTH = int(os.environ.get("WIDTH", 128))
BLOCKS = int(os.environ.get("BLOCKS", 7))
HEADS = 4
CLASSES = 9

torch.backends.cudnn.enabled = os.environ.get("VARIANT", "a") == "b"


class Block(nn.Module):
    def __init__(self, width, dilation=1):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(x + y)


class Outlook(nn.Module):
    """Lets each place of the map look at all of the others."""

    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        b, c, h, w = x.shape
        t = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm1(t)).view(b, h * w, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        t = t + self.proj(a.transpose(1, 2).reshape(b, h * w, c))
        t = t + self.fc2(F.gelu(self.fc1(self.norm2(t))))
        return t.transpose(1, 2).reshape(b, c, h, w)


class TileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(4, WIDTH, 3, stride=2, padding=1)
        self.body = nn.Sequential(*(Block(WIDTH, 1 if i < 4 else 2) for i in range(BLOCKS)))
        self.outlook = nn.Sequential(*(Outlook(WIDTH) for _ in range(4)))
        self.head = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, x):
        x = self.body(F.relu(self.stem(x)))
        x = self.head(self.outlook(x))
        return F.interpolate(x, scale_factor=2, mode="nearest")


def make_tiles(device, count=8):
    """Tiles with blobs; the label of a place is the strength of the blobs there."""
    tiles, marks = [], []
    for _ in range(count):
        coarse = torch.rand(BATCH, 4, 8, 8, device=device)
        tile = F.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")
        marks.append((tile.mean(1) * CLASSES).long().clamp(0, CLASSES - 1))
        tiles.append(tile + 0.05 * torch.randn_like(tile))
    return tiles, marks


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(11)
    tiles, marks = make_tiles(device)
    net = TileNet().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out = net(tiles[step % len(tiles)])
        loss = F.cross_entropy(out.float(), marks[step % len(tiles)])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
