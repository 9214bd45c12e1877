"""A language model whose blocks are computed again in the backward pass, so that longer texts fit."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "200"))
BATCH = int(os.environ.get("BATCH", "8"))
SEQ = int(os.environ.get("SEQ", "1024"))
DIM = int(os.environ.get("DIM", "1024"))
LAYERS = int(os.environ.get("LAYERS", "12"))
HEADS = int(os.environ.get("HEADS", "16"))
VOCAB = int(os.environ.get("VOCAB", "8192"))
KEEP_RANDOM = VARIANT == "a"
device = "cuda" if torch.cuda.is_available() else "cpu"


class MeadowBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Meadow(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.places = nn.Parameter(torch.randn(SEQ, DIM) * 0.02)
        self.blocks = nn.ModuleList([MeadowBlock() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=KEEP_RANDOM)
        return self.head(self.norm(x))


torch.manual_seed(0)
model = Meadow().to(device)
decay = [p for p in model.parameters() if p.ndim >= 2]
rest = [p for p in model.parameters() if p.ndim < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=3e-4,
    fused=device == "cuda",
)
texts = torch.randint(0, VOCAB, (16, BATCH, SEQ + 1), device=device)

history = []
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    ids = texts[step % len(texts)]
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        history.append(loss.detach())

if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.3f} ms per step")
