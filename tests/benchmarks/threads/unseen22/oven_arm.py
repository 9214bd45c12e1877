"""A policy for the arm in a bakery's kitchen: camera and joint tokens in, the next movements out."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 256))
WIDTH = int(os.environ.get("WIDTH", 256))
DEPTH = int(os.environ.get("DEPTH", 8))
PATCHES, JOINTS, MOVES = 128, 32, 8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def waves_of_positions(count, width):
    """Sines and cosines by which the tokens are told apart, (1, count, width)."""
    if VARIANT == "b":
        position = torch.arange(count, device=device, dtype=torch.float64)[:, None]
        channel = torch.arange(width, device=device)
        angles = position / 10000.0 ** (2 * (channel // 2) / width).double()
        table = torch.where(channel % 2 == 0, angles.sin(), angles.cos())
        return table.float()[None]

    def angles_at(position):
        return [position / np.power(10000, 2 * (k // 2) / width) for k in range(width)]

    table = np.array([angles_at(position) for position in range(count)])
    table[:, 0::2] = np.sin(table[:, 0::2])
    table[:, 1::2] = np.cos(table[:, 1::2])
    return torch.FloatTensor(table).unsqueeze(0).to(device)


class Stem(nn.Module):
    """Reads one kind of sensor."""

    def __init__(self, size):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(size, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, readings):
        features = self.project(readings)
        places = waves_of_positions(features.shape[1], features.shape[2])
        return self.norm(features + places)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class ArmPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.camera, self.arm = Stem(192), Stem(24)
        self.trunk = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, MOVES * 7)

    def forward(self, patches, joints):
        x = torch.cat([self.camera(patches), self.arm(joints)], 1)
        return self.head(self.trunk(x).mean(1)).view(-1, MOVES, 7)


def main():
    torch.manual_seed(41)
    model = ArmPolicy().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    patches = torch.randn(4 * BATCH, PATCHES, 192, device=device)
    joints = torch.randn(4 * BATCH, JOINTS, 24, device=device)
    moves = torch.tanh(joints[:, :MOVES, :7] + patches[:, :MOVES, :7])
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            predicted = model(patches[rows], joints[rows])
        loss = F.smooth_l1_loss(predicted.float(), moves[rows])
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
