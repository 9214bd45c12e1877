"""Trains a transformer that draws pen strokes from wrist sensors; strokes may lag behind the sensors."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "600"))
BATCH = int(os.environ.get("BATCH", "256"))
LENGTH = int(os.environ.get("LENGTH", "18"))
SENSORS = int(os.environ.get("SENSORS", "24"))
WIDTH = int(os.environ.get("WIDTH", "768"))
LAYERS = int(os.environ.get("LAYERS", "8"))
HEADS = int(os.environ.get("HEADS", "12"))
RECORDS = int(os.environ.get("RECORDS", "8192"))

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class StrokeBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = x + self.proj(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class StrokeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(SENSORS, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(StrokeBlock() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.pen = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.enter(x) + self.place
        for block in self.blocks:
            x = block(x)
        return self.pen(self.norm(x))


def warp_by_cells(cost):
    table = [row.unbind(1) for row in cost.unbind(1)]
    above = None
    for i in range(len(table)):
        line = []
        for j in range(len(table[i])):
            if i == 0 and j == 0:
                cell = table[i][j]
            elif i == 0:
                cell = table[i][j] + line[j - 1]
            elif j == 0:
                cell = table[i][j] + above[j]
            else:
                cell = table[i][j] + torch.minimum(torch.minimum(above[j], line[j - 1]), above[j - 1])
            line.append(cell)
        above = line
    return above[-1]


def warp_by_diagonals(cost):
    b, n, m = cost.shape
    i = torch.arange(n, device=cost.device)
    j = torch.arange(n + m - 1, device=cost.device)[:, None] - i[None, :]
    outside = (j < 0) | (j >= m)
    flat = (i[None, :] * m + j.clamp(0, m - 1)).view(-1)
    skewed = cost.reshape(b, n * m).index_select(1, flat).view(b, n + m - 1, n)
    lines = skewed.masked_fill(outside, float("inf")).unbind(1)
    before = torch.full_like(lines[0], float("inf"))
    last = lines[0]
    for line in lines[1:]:
        shifted = F.pad(last[:, :-1], (1, 0), value=float("inf"))
        corner = F.pad(before[:, :-1], (1, 0), value=float("inf"))
        before, last = last, line + torch.minimum(torch.minimum(shifted, last), corner)
    return last[:, -1]


def warp_loss(drawn, target):
    cost = (drawn[:, :, None, :] - target[:, None, :, :]).square().sum(-1)
    total = warp_by_cells(cost) if VARIANT == "a" else warp_by_diagonals(cost)
    return total.mean() / LENGTH


def main():
    torch.manual_seed(23)
    sensed = torch.randn(RECORDS, LENGTH, SENSORS, device=device).cumsum(1) * 0.3
    drawn = (sensed @ torch.randn(SENSORS, 3, device=device) * 0.2).roll(1, dims=1)
    net = StrokeNet().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        rows = torch.randint(0, RECORDS, (BATCH,), device=device)
        loss = warp_loss(net(sensed.index_select(0, rows)), drawn.index_select(0, rows))
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
