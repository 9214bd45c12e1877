"""Electric load of a harbour: a forecaster of the next day from a week of fourteen hourly series."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 1024))
HOURS = int(os.environ.get("HOURS", 500000))
WIDTH = int(os.environ.get("WIDTH", 128))
DEPTH = int(os.environ.get("DEPTH", 3))
PAST, NEXT, PATCH, COLUMNS = 168, 24, 12, 14
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, c // 32, 32).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class LoadForecaster(nn.Module):
    """Each series is cut in patches of half a day; the series share their weights."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(PAST // PATCH, WIDTH))
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(PAST // PATCH * WIDTH, NEXT)
        self.mix = nn.Linear(COLUMNS - 1, 1)

    def forward(self, past):
        b, _, columns = past.shape
        middle = past.mean(1, keepdim=True)
        scale = past.std(1, keepdim=True) + 1e-3
        x = ((past - middle) / scale).transpose(1, 2).reshape(b * columns, -1, PATCH)
        x = self.embed(x) + self.place
        for layer in self.layers:
            x = layer(x)
        x = self.head(self.norm(x).flatten(1)).view(b, columns, NEXT).transpose(1, 2)
        return self.mix(x * scale + middle)[..., 0]


class Forecasting:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
        self.windows = None

    def create_windows(self, temporal):
        """All spans of past and future hours, except those of which nothing of the past was recorded."""
        windows = temporal.unfold(-1, PAST + NEXT, 1)
        windows = windows.permute(1, 2, 0).reshape(-1, PAST + NEXT, COLUMNS)
        recorded = windows[:, :PAST, -1].sum(1) > 0
        return windows[recorded]

    def windows_of(self, temporal):
        if VARIANT == "b" and self.windows is not None:
            return self.windows
        windows = self.create_windows(temporal)
        if VARIANT == "b":
            self.windows = windows
        return windows

    def training_step(self, temporal):
        windows = self.windows_of(temporal)
        picked = torch.randint(0, len(windows), (BATCH,), device=temporal.device)
        windows = windows[picked]
        past, future, known = windows[:, :PAST, :-1], windows[:, PAST:, 0], windows[:, PAST:, -1]
        forecast = self.model(past)
        loss = (known * F.huber_loss(forecast, future, reduction="none")).sum() / known.sum().clamp(min=1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def records():
    """Loads and weather by the hour; the last row tells which hours were recorded."""
    hours = torch.arange(HOURS)
    waves = [torch.sin(6.283 * hours / period) for period in (24, 168, 8760)]
    rows = [
        sum(torch.rand(1) * wave for wave in waves) + 0.2 * torch.randn(HOURS) for _ in range(COLUMNS - 1)
    ]
    recorded = (hours % 5000 > 400).float()
    return torch.stack([row * recorded for row in rows] + [recorded])


def main():
    torch.manual_seed(59)
    temporal = records().to(device)
    training = Forecasting(LoadForecaster().to(device))
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = training.training_step(temporal)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
