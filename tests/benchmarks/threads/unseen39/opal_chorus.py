"""A speech model fills in masked sounds; several recordings share one row, and none may look at another."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "200"))
BATCH = int(os.environ.get("BATCH", "4"))
SEQ = int(os.environ.get("SEQ", "2048"))
DIM = int(os.environ.get("DIM", "1024"))
LAYERS = int(os.environ.get("LAYERS", "6"))
HEADS = int(os.environ.get("HEADS", "8"))
SHORTEST = int(os.environ.get("SHORTEST", "96"))
LONGEST = int(os.environ.get("LONGEST", "352"))
CODES = int(os.environ.get("CODES", "2048"))
device = "cuda" if torch.cuda.is_available() else "cpu"


def attend_on_host(q, k, v, block_mask):
    i = torch.arange(q.shape[2])
    same = block_mask.mask_mod(torch.arange(len(q))[:, None, None], 0, i[:, None], i)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=same[:, None])


attend = torch.compile(flex_attention, dynamic=False) if device == "cuda" else attend_on_host


class HeadNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


def voice_attention(q, k, v, block_mask):
    if VARIANT != "a" and torch.is_autocast_enabled(q.device.type) and q.dtype == torch.float32:
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    return attend(q, k, v, block_mask=block_mask)


def turn(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Singer(nn.Module):
    def __init__(self):
        super().__init__()
        size = DIM // HEADS
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.q_norm, self.k_norm = HeadNorm(size), HeadNorm(size)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.gate, self.up = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, 3 * DIM, bias=False)
        self.down = nn.Linear(3 * DIM, DIM, bias=False)

    def forward(self, x, cos, sin, block_mask):
        b, n, d = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(b, n, HEADS, d // HEADS) for f in (self.q, self.k, self.v))
        q, k = turn(self.q_norm(q).transpose(1, 2), cos, sin), turn(self.k_norm(k).transpose(1, 2), cos, sin)
        v = v.transpose(1, 2).to(q.dtype)
        y = voice_attention(q, k, v, block_mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Chorus(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(CODES + 1, DIM)
        self.singers = nn.ModuleList([Singer() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CODES, bias=False)
        size = DIM // HEADS
        angle = torch.arange(SEQ)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("cos", torch.cat([angle, angle], -1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], -1).sin())

    def forward(self, ids, block_mask):
        x = self.codes(ids)
        for singer in self.singers:
            x = singer(x, self.cos, self.sin, block_mask)
        return self.head(self.norm(x))


def pack_recordings():
    owner = torch.zeros(BATCH, SEQ, dtype=torch.long)
    for row in owner:
        ends = torch.randint(SHORTEST, LONGEST, (SEQ // SHORTEST,)).cumsum(0)
        row.copy_(torch.bucketize(torch.arange(SEQ), ends, right=True))
    own = owner.to(device)
    return create_block_mask(lambda b, h, i, j: own[b, i] == own[b, j], BATCH, None, SEQ, SEQ, device=device)


torch.manual_seed(0)
model = Chorus().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
block_mask = pack_recordings()
library = torch.randint(0, CODES, (8, BATCH, SEQ), device=device)

warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    sounds = library[step % len(library)]
    hidden = torch.rand(BATCH, SEQ, device=device) < 0.4
    with torch.autocast(device, dtype=torch.bfloat16):
        scores = model(sounds.masked_fill(hidden, CODES), block_mask)
        loss = F.cross_entropy(scores.flatten(0, 1), sounds.masked_fill(~hidden, -100).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.3f} ms per step")
