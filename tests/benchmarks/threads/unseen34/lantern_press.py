"""Pretrains a small GPT on pages of an old printing press, with a log of every update."""

import json
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "450"))
BATCH = int(os.environ.get("BATCH", "16"))
LENGTH = int(os.environ.get("LENGTH", "1024"))
DIM = int(os.environ.get("DIM", "1024"))
LAYERS = int(os.environ.get("LAYERS", "12"))
HEADS = int(os.environ.get("HEADS", "16"))
VOCAB = int(os.environ.get("VOCAB", "16384"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")
LOG_EVERY_N_STEPS = 1 if VARIANT == "a" else 50


class PressBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, d)
        x = x + self.proj(h)
        return x + self.mlp(self.norm2(x))


class PressGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(PressBlock(DIM, HEADS) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class RunLogger:
    """Writes scalars as lines of JSON, and the line of the console into a file."""

    def __init__(self, folder):
        self.scalars = open(os.path.join(folder, "scalars.jsonl"), "w")
        self.console = open(os.path.join(folder, "console.log"), "w")

    def log(self, step, values):
        for name, value in values.items():
            line = {"step": step, "tag": name, "value": value, "wall": time.time()}
            self.scalars.write(json.dumps(line) + "\n")
        line = " | ".join(f"{name} {value:.5g}" for name, value in values.items())
        print(f"iteration {step:7d} | {line}", file=self.console)
        self.scalars.flush()


torch.manual_seed(0)
model = PressGPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=device.type == "cuda")
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100))
pages = torch.randint(VOCAB, (8, BATCH, LENGTH + 1), device=device)
logger = RunLogger(tempfile.mkdtemp())
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    page = pages[step % len(pages)]
    with torch.autocast(device.type, torch.bfloat16):
        logits = model(page[:, :-1])
    loss = F.cross_entropy(logits.float().view(-1, VOCAB), page[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % LOG_EVERY_N_STEPS == 0:
        values = {
            "train/loss": loss.item(),
            "train/grad_norm": grad_norm.item(),
            "train/lr": scheduler.get_last_lr()[0],
            "train/tokens": (step + 1) * BATCH * LENGTH,
        }
        if device.type == "cuda":
            values["memory/allocated_gb"] = torch.cuda.memory_allocated() / 1e9
            values["memory/peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        logger.log(step, values)
if device.type == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
