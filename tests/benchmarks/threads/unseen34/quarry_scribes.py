"""Trains a two-sided language model with relative positions (as in XLNet) on quarry inscriptions."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "400"))
BATCH = int(os.environ.get("BATCH", "48"))
LENGTH = int(os.environ.get("LENGTH", "512"))
DIM = int(os.environ.get("DIM", "1024"))
LAYERS = int(os.environ.get("LAYERS", "4"))
HEADS = int(os.environ.get("HEADS", "16"))
VOCAB = int(os.environ.get("VOCAB", "8000"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class ScribeAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.size = heads, dim // heads
        self.q, self.k, self.v, self.o, self.r = (nn.Linear(dim, dim, bias=False) for _ in range(5))
        self.r_w_bias = nn.Parameter(torch.zeros(heads, 1, self.size))
        self.r_r_bias = nn.Parameter(torch.zeros(heads, 1, self.size))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).permute(1, 2, 0, 3)

    @staticmethod
    def rel_shift(x, klen):
        n, h, i, j = x.shape
        x = x.reshape(n, h, j, i)[:, :, 1:, :].reshape(n, h, i, j - 1)
        return x[:, :, :, :klen]

    def forward(self, x, pos):
        q, k = self.split(self.q(x)), self.split(self.k(x))
        v, r = self.split(self.v(x)), self.split(self.r(pos))
        ac = (q + self.r_w_bias.to(q.dtype)) @ k.transpose(-1, -2)
        bd = self.rel_shift((q + self.r_r_bias.to(q.dtype)) @ r.transpose(-1, -2), ac.shape[3])
        prob = F.softmax((ac + bd) * self.size**-0.5, dim=-1)
        out = (prob.to(v.dtype) @ v).permute(2, 0, 1, 3).reshape(x.shape)
        return self.o(out)


class ScribeLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = ScribeAttention(dim, heads)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, pos):
        x = self.norm1(x + self.attn(x, pos))
        return self.norm2(x + self.ff(x))


class ScribeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(ScribeLayer(DIM, HEADS) for _ in range(LAYERS))
        self.head = nn.Linear(DIM, VOCAB)

    @staticmethod
    def positional_embedding(pos_seq, inv_freq, bsz):
        sinusoid = torch.einsum("i,d->id", pos_seq, inv_freq)
        pos_emb = torch.cat([torch.sin(sinusoid), torch.cos(sinusoid)], dim=-1)
        return pos_emb[:, None, :].expand(-1, bsz, -1)

    def relative_positional_encoding(self, qlen, klen, bsz, place=None):
        freq_seq = torch.arange(0, DIM, 2.0, device=place)
        inv_freq = 1 / torch.pow(10000, freq_seq / DIM)
        pos_seq = torch.arange(klen, -qlen, -1.0, device=place)
        return self.positional_embedding(pos_seq, inv_freq, bsz)

    def forward(self, ids):
        bsz, qlen = ids.shape
        x = self.words(ids.t())
        place = None if VARIANT == "a" else ids.device
        pos = self.relative_positional_encoding(qlen, qlen, bsz, place)
        pos = pos.to(x.device)
        for layer in self.layers:
            x = layer(x, pos)
        return self.head(x).transpose(0, 1)


torch.manual_seed(0)
model = ScribeModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
corpus = torch.randint(1, VOCAB, (16 * BATCH, LENGTH), device=device)
hidden = torch.rand(16 * BATCH, LENGTH, device=device) < 0.15
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    rows = slice((step % 16) * BATCH, (step % 16 + 1) * BATCH)
    target = corpus[rows]
    ids = target.masked_fill(hidden[rows], 0)
    with torch.autocast(device.type, torch.bfloat16):
        logits = model(ids)
    loss = F.cross_entropy(logits.float().reshape(-1, VOCAB), target.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if device.type == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
