"""A small GPT on random tokens, well written: SDPA, fused AdamW, data on the device.

Meant to be healthy.
"""

import os
import sys
import time
import torch
from torch import nn
import torch.nn.functional as F

TRUTH = "compute-bound"
DEV = "cuda" if torch.cuda.is_available() else "cpu"
D, H, L, T, B, V = (128, 4, 3, 128, 8, 2000) if DEV == "cpu" else (1024, 16, 8, 1024, 8, 32000)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, D // H).transpose(1, 2) for z in self.qkv(self.n1(x)).split(D, 2))
        x = x + self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D)
        )
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, D)
        self.p = nn.Embedding(T, D)
        self.b = nn.ModuleList(Block() for _ in range(L))
        self.h = nn.Linear(D, V)

    def forward(self, i):
        x = self.e(i) + self.p.weight
        for b in self.b:
            x = b(x)
        return self.h(x)


net = GPT().to(DEV)
opt = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
for it in range(80):
    if it == 10:
        t0 = time.perf_counter()
    i = torch.randint(0, V, (B, T), device=DEV)
    with torch.autocast(DEV, torch.bfloat16, enabled=DEV == "cuda"):
        loss = F.cross_entropy(net(i).view(-1, V), i.view(-1))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / 70:.3f}")
