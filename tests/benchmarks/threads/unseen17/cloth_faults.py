"""Faults in woven cloth: a small student learns to see sound cloth as a large teacher does, crop by crop."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 6))
WIDE = int(os.environ.get("WIDE", 2560))
NARROW = int(os.environ.get("NARROW", 768))
DEPTH = int(os.environ.get("DEPTH", 8))
CROPS = (160, 176, 192, 208, 224, 240)
PATCH, SIDE = 16, 320
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width, head=64):
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, -1, self.head).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Sight(nn.Module):
    """Patches of a picture of any size, as the layers see them."""

    def __init__(self, width, out=None):
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(1, width, SIDE // PATCH, SIDE // PATCH))
        self.layers = nn.Sequential(*[Layer(width) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, out) if out else nn.Identity()

    def forward(self, x):
        x = self.patches(x)
        x = x + self.place[:, :, : x.shape[2], : x.shape[3]]
        return self.out(self.norm(self.layers(x.flatten(2).transpose(1, 2))))


def large_teacher():
    with torch.device(device):
        teacher = Sight(WIDE)
    teacher.eval().requires_grad_(False)
    if VARIANT == "b":
        for module in teacher.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.to(torch.bfloat16)
    return teacher


def woven(count):
    """Sound cloth: threads that cross, of a pitch and a colour of their own."""
    at = torch.arange(SIDE).float()
    pitch = 0.3 + torch.rand(count, 2, 1, 1, 1)
    warp, weft = torch.sin(pitch[:, 0] * at.view(1, 1, -1)), torch.sin(pitch[:, 1] * at.view(1, -1, 1))
    return (torch.rand(count, 3, 1, 1) * (warp + weft) + 0.1 * torch.randn(count, 3, SIDE, SIDE)).to(device)


def main():
    torch.manual_seed(43)
    teacher = large_teacher()
    student = Sight(NARROW, WIDE).to(device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-4, fused=device.type == "cuda")
    cloth = woven(16 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        pictures = cloth[step % 16 * BATCH : (step % 16 + 1) * BATCH]
        corners = torch.rand(len(CROPS), 2).tolist()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = 0.0
            for size, (down, right) in zip(CROPS, corners, strict=True):
                top, left = int(down * (SIDE - size)), int(right * (SIDE - size))
                crop = pictures[:, :, top : top + size, left : left + size]
                with torch.no_grad():
                    wanted = teacher(crop)
                loss = loss + F.smooth_l1_loss(student(crop).float(), wanted.float()) / len(CROPS)
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
