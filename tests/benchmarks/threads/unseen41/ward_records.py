"""Pre-trains an encoder of hospital records: codes, ages and positions in, masked codes out."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 100))
BATCH = int(os.environ.get("BATCH", 64))
LENGTH = int(os.environ.get("LENGTH", 512))
DIM = int(os.environ.get("DIM", 768))
LAYERS = int(os.environ.get("LAYERS", 8))
CODES = int(os.environ.get("CODES", 8192))
AGES, SEGMENTS, POOL = 120, 256, 4
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")
torch.manual_seed(0)


class WardBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.gate, self.up = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 3 * DIM)
        self.down = nn.Linear(3 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, DIM // 64, 64).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, DIM))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class WardEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.code, self.age = nn.Embedding(CODES, DIM), nn.Embedding(AGES, DIM)
        self.segment, self.place = nn.Embedding(SEGMENTS, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(WardBlock() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CODES)

    def forward(self, codes, ages, segments):
        x = self.code(codes) + self.age(ages) + self.segment(segments) + self.place.weight
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def draw_records():
    g = torch.Generator().manual_seed(8)
    n = POOL * BATCH
    codes = torch.randint(2, CODES, (n, LENGTH), generator=g)
    segments = torch.randint(0, 2, (n, LENGTH), generator=g).cumsum(1).clamp(max=SEGMENTS - 1)
    ages = (torch.randint(0, 80, (n, 1), generator=g) + segments // 8).clamp(max=AGES - 1)
    masked = torch.rand(n, LENGTH, generator=g) < 0.2
    return [t.to(device) for t in (codes, ages, segments, masked)]


records = draw_records()
model = WardEncoder().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
mixed = VARIANT != "a"
scaler = torch.amp.GradScaler(device, enabled=mixed)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    at = step % POOL * BATCH
    codes, ages, segments, masked = [t[at : at + BATCH] for t in records]
    with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
        states = model(codes.masked_fill(masked, 1), ages, segments)
        logits = model.head(states[masked])
        loss = F.cross_entropy(logits, codes[masked])
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - t0
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
