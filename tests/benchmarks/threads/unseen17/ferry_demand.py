"""Passengers of ferry lines, foretold from weeks of hourly counts: an encoder of long series."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
BATCH = int(os.environ.get("BATCH", 32))
LENGTH = int(os.environ.get("LENGTH", 1008))
AHEAD = int(os.environ.get("AHEAD", 168))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 4))
LINES, HEAD = 21, 64
ATTENTION = "prob" if VARIANT == "a" else "full"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ProbAttention(nn.Module):
    """Only the queries that stand out attend; all others take the mean."""

    def __init__(self, factor=5):
        super().__init__()
        self.factor = factor

    def outstanding(self, q, k, keys, queries):
        b, h, n, e = k.shape
        every = k.unsqueeze(-3).expand(b, h, q.shape[2], n, e)
        drawn = torch.randint(n, (q.shape[2], keys), device=q.device)
        rows = torch.arange(q.shape[2], device=q.device).unsqueeze(1)
        sample = every[:, :, rows, drawn, :]
        scores = torch.matmul(q.unsqueeze(-2), sample.transpose(-2, -1)).squeeze(-2)
        sparsity = scores.max(-1)[0] - scores.sum(-1) / n
        return sparsity.topk(queries, sorted=False)[1]

    def forward(self, q, k, v):
        b, h, n, e = q.shape
        keys = min(n, self.factor * math.ceil(math.log(k.shape[2])))
        queries = min(n, self.factor * math.ceil(math.log(n)))
        top = self.outstanding(q, k, keys, queries).unsqueeze(-1).expand(-1, -1, -1, e)
        chosen = q.gather(2, top)
        weights = torch.softmax(chosen @ k.transpose(-2, -1) / math.sqrt(e), dim=-1)
        mean = v.mean(2, keepdim=True).expand(b, h, n, e)
        return mean.scatter(2, top, (weights @ v).to(mean.dtype))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = ProbAttention() if ATTENTION == "prob" else F.scaled_dot_product_attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, -1, HEAD).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = nn.Conv1d(LINES, WIDTH, 3, padding=1, padding_mode="circular")
        self.hour, self.day = nn.Embedding(24, WIDTH), nn.Embedding(7, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LINES)

    def forward(self, counts, hours):
        x = self.counts(counts.transpose(1, 2)).transpose(1, 2)
        x = x + self.hour(hours % 24) + self.day(hours // 24 % 7)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x[:, -AHEAD:]))


def ferries(hours):
    """Counts of all lines: a rhythm of days and weeks, a drift, and noise."""
    t = torch.arange(hours).unsqueeze(1)
    day = torch.sin(2 * math.pi * (t / 24 + torch.rand(LINES)))
    week = torch.cos(2 * math.pi * (t / 168 + torch.rand(LINES)))
    drift = 0.03 * torch.randn(hours, LINES).cumsum(0)
    return (day + 0.5 * week + drift + 0.2 * torch.randn(hours, LINES)).to(device)


def main():
    torch.manual_seed(13)
    model = Forecast().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    series = ferries(20000)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        begin = torch.randint(len(series) - LENGTH - AHEAD, (BATCH, 1), device=device)
        hours = begin + torch.arange(LENGTH + AHEAD, device=device)
        window = series[hours]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            foretold = model(window[:, :LENGTH], hours[:, :LENGTH])
        loss = F.mse_loss(foretold.float(), window[:, LENGTH:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
