"""A transformer that tells apart kinds of dividing cells in short microscope clips of mixed sizes."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
CLIPS = int(os.environ.get("CLIPS", 8))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 6))
SIDE, FRAMES, COLOURS = 14, 2, 3
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class CubeEmbed(nn.Module):
    """Each row is one cube of a clip, as the microscope's software hands them over."""

    def __init__(self, width):
        super().__init__()
        size = (FRAMES, SIDE, SIDE)
        self.proj = nn.Conv3d(COLOURS, width, kernel_size=size, stride=size)

    def forward(self, cubes):
        if VARIANT == "b":
            weight = self.proj.weight.flatten(1)
            return F.linear(cubes, weight, self.proj.bias)
        cubes = cubes.view(-1, COLOURS, FRAMES, SIDE, SIDE)
        return self.proj(cubes).view(cubes.shape[0], -1)


class Block(nn.Module):
    def __init__(self, width, heads=12):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class ClipNet(nn.Module):
    def __init__(self, kinds=20):
        super().__init__()
        self.embed = CubeEmbed(WIDTH)
        self.place = nn.Parameter(torch.randn(1024, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, kinds)

    def forward(self, cubes, clips):
        x = self.embed(cubes).view(clips, -1, WIDTH)
        x = self.blocks(x + self.place[: x.shape[1]])
        return self.head(x.mean(1))


def draw(clips, cubes_each):
    kinds = torch.randint(0, 20, (clips,))
    cubes = torch.randn(clips, cubes_each, COLOURS * FRAMES * SIDE * SIDE)
    cubes = cubes + 0.1 * kinds[:, None, None] * torch.linspace(-1, 1, cubes.shape[-1])
    return cubes.flatten(0, 1), kinds


def main():
    torch.manual_seed(41)
    model = ClipNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    batches = [tuple(x.to(device) for x in draw(CLIPS, n)) for n in (512, 640, 768, 512, 1024, 640)]
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        cubes, kinds = batches[step % len(batches)]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(cubes, CLIPS).float(), kinds)
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
