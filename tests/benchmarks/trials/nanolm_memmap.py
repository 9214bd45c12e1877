"""Language model in the nanoGPT way: globals, memmap get_batch, gradient accumulation, cosine schedule.

Healthy: compute-bound (matrix products of a width that keeps the machine busy).
"""

import math
import os
import tempfile
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

TRUTH = "compute-bound"

# -----------------------------------------------------------------------------
batch_size = 4
block_size = 64
gradient_accumulation_steps = 2
n_layer, n_head, n_embd = 2, 4, 128
vocab_size = 512
max_iters = 80
learning_rate = 6e-4
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    batch_size, block_size, n_layer, n_head, n_embd = 16, 1024, 8, 12, 768
# -----------------------------------------------------------------------------
data_file = os.path.join(tempfile.mkdtemp(), "train.bin")
np.random.default_rng(0).integers(0, vocab_size, 300_000, dtype=np.uint16).tofile(data_file)
ctx = nullcontext() if device == "cpu" else torch.autocast(device, torch.bfloat16)


def get_batch():
    data = np.memmap(data_file, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    if device == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
X, Y = get_batch()
durations = []
t0 = time.time()
for iter_num in range(max_iters):
    lr = learning_rate * 0.5 * (1 + math.cos(math.pi * iter_num / max_iters))
    for group in optimizer.param_groups:
        group["lr"] = lr
    for _ in range(gradient_accumulation_steps):
        with ctx:
            loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0:
        lossf = loss.item() * gradient_accumulation_steps
        t1 = time.time()
        durations.append((t1 - t0) / 10)
        t0 = t1
        print(f"iter {iter_num}: loss {lossf:.4f}")
print(f"step_ms={sorted(durations[1:])[len(durations) // 2 - 1] * 1000:.3f}")
