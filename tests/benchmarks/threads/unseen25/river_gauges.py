"""Trains a transformer that forecasts the water level at river gauges."""

import os
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "450"))
BATCH = int(os.environ.get("BATCH", "64"))
DAYS = int(os.environ.get("DAYS", "512"))
SERIES = int(os.environ.get("SERIES", "32"))
WIDTH = int(os.environ.get("WIDTH", "768"))
LAYERS = int(os.environ.get("LAYERS", "8"))
HEADS = int(os.environ.get("HEADS", "12"))


class Usage:
    """Memory in use after each step, for the charts."""

    def __init__(self, device):
        self.device = device
        self.rows = []

    def log(self, step):
        row = {"step": step, "host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
        if self.device.type == "cuda":
            stats = torch.cuda.memory_stats(self.device)
            row["segments"] = stats["segment.all.current"]
            row["retries"] = stats["num_alloc_retries"]
            row["allocated"] = torch.cuda.memory_allocated(self.device)
            row["reserved"] = torch.cuda.memory_reserved(self.device)
            row["peak"] = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self.rows.append(row)


class GaugeLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, days, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, days, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, days, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class RiverModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(SERIES, WIDTH)
        self.days = nn.Parameter(0.02 * torch.randn(DAYS, WIDTH))
        self.layers = nn.ModuleList(GaugeLayer(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SERIES)

    def forward(self, levels):
        x = self.embed(levels) + self.days
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make_levels(count, device):
    """Random walks that come back to the mean."""
    shocks = torch.randn(count, DAYS + 1, SERIES, device=device)
    return shocks.cumsum(dim=1) / torch.arange(1, DAYS + 2, device=device)[:, None] ** 0.5


def main():
    torch.manual_seed(9)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    levels = make_levels(8 * BATCH, device)
    model = RiverModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=cuda)
    usage = Usage(device)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = levels[(step % 8) * BATCH : (step % 8 + 1) * BATCH]
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            guess = model(rows[:, :-1])
        loss = F.mse_loss(guess.float(), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if VARIANT == "a":
            usage.log(step)
    if cuda:
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"rows {len(usage.rows)}")
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
