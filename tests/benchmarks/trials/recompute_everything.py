"""GPT-like model with activation checkpointing around each block, though memory is plentiful.

Planted: compute-bound, on recomputation (the line is marked). --fixed: no checkpointing.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

TRUTH = "compute-bound"
ACCEPT = ("allocator-thrashing",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.n1, self.n2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        )
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocab=512, d=192, layers=4):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(128, d)
        self.blocks = nn.ModuleList(Block(d, 6) for _ in range(layers))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x) if FIXED else checkpoint(block, x, use_reentrant=False)  # planted
        return self.head(x)


model = GPT().to(DEV)
opt = torch.optim.AdamW(model.parameters(), 3e-4)
N = 60
for it in range(N):
    if it == 10:
        t0 = time.perf_counter()
    ids = torch.randint(0, 512, (8, 97), device=DEV)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 10):.3f}")
