"""Transformer encoder whose attention loops over the heads in Python; the fix puts heads in a dimension.

Planted: launch-bound (the line is marked). --fixed: the same attention with heads as a dimension.
"""

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = "launch-bound"
ap = argparse.ArgumentParser()
ap.add_argument("--fixed", action="store_true")
ap.add_argument("--steps", type=int, default=160)
args = ap.parse_args()
DEV = "cuda" if torch.cuda.is_available() else "cpu"
D, HEADS, LAYERS, T, B = 64, 16, 4, 24, 4


class SlowAttention(nn.Module):
    def __init__(self):
        super().__init__()
        hd = D // HEADS
        self.q = nn.ModuleList(nn.Linear(D, hd) for _ in range(HEADS))
        self.k = nn.ModuleList(nn.Linear(D, hd) for _ in range(HEADS))
        self.v = nn.ModuleList(nn.Linear(D, hd) for _ in range(HEADS))
        self.out = nn.Linear(D, D)

    def forward(self, x):
        outs = []
        for q, k, v in zip(self.q, self.k, self.v):
            a = q(x) @ k(x).transpose(1, 2) / math.sqrt(D // HEADS)  # planted
            outs.append(F.softmax(a, -1) @ v(x))
        return self.out(torch.cat(outs, -1))


class FastAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = FastAttention() if args.fixed else SlowAttention()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


model = nn.Sequential(nn.Embedding(200, D), *[Block() for _ in range(LAYERS)], nn.Linear(D, 200)).to(DEV)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(args.steps):
    if step == 20:
        t0 = time.perf_counter()
    ids = torch.randint(0, 200, (B, T + 1), device=DEV)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (args.steps - 20):.3f}")
