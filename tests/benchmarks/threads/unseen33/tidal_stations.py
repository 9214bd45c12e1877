"""Forecast of the water level at many tide gauges, with weights of its own for each gauge."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "550"))
GAUGES = 36
BATCH = 64
HISTORY = 12
CHANNELS = 3
WIDTH = 48
HORIZON = 12
device = torch.device("cpu")


class GaugeLinear(nn.Module):
    """A linear map for every gauge: weight (gauges, width, width)."""

    def __init__(self, gauges, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(gauges, n_in, n_out) / n_in**0.5)
        self.bias = nn.Parameter(torch.zeros(gauges, n_out))

    def forward(self, x):
        # x: (batch, gauges, n_in)
        if VARIANT == "a":
            out = torch.matmul(x.unsqueeze(2), self.weight).squeeze(2)
        else:
            out = torch.bmm(x.transpose(0, 1), self.weight).transpose(0, 1)
        return out + self.bias


class TideForecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(CHANNELS, WIDTH, batch_first=True)
        self.local = nn.ModuleList([GaugeLinear(GAUGES, WIDTH, WIDTH) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.shared = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, HORIZON)

    def forward(self, series):
        # series: (batch, gauges, history, channels)
        b, g, t, c = series.shape
        _, h = self.encoder(series.reshape(b * g, t, c))
        h = h[0].view(b, g, WIDTH)
        for layer in self.local:
            h = h + F.gelu(layer(h))
        h = h + self.shared(self.norm(h))
        return self.head(h)


class TideArchive:
    """Harmonic tides with noise, wind and pressure."""

    def __init__(self, length=4000):
        gen = torch.Generator().manual_seed(3)
        hours = torch.arange(length, dtype=torch.float32)
        phase = torch.rand(GAUGES, 1, generator=gen) * 6.28
        amp = 0.5 + torch.rand(GAUGES, 1, generator=gen)
        level = amp * torch.sin(hours / 12.42 * 6.283 + phase)
        level = level + 0.3 * torch.sin(hours / 12.0 * 6.283 + 2 * phase)
        wind = torch.randn(GAUGES, length, generator=gen)
        pressure = torch.randn(GAUGES, length, generator=gen)
        level = level + 0.05 * wind - 0.05 * pressure
        self.data = torch.stack([level, wind, pressure], dim=-1)
        self.gen = gen

    def draw(self):
        last = self.data.shape[1] - HISTORY - HORIZON
        starts = torch.randint(0, last, (BATCH,), generator=self.gen).tolist()
        past = torch.stack([self.data[:, s : s + HISTORY] for s in starts])
        future = torch.stack([self.data[:, s + HISTORY : s + HISTORY + HORIZON, 0] for s in starts])
        return past, future


def main():
    torch.manual_seed(0)
    archive = TideArchive()
    model = TideForecaster().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        past, future = archive.draw()
        forecast = model(past.to(device))
        loss = F.smooth_l1_loss(forecast, future.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * took / max(1, STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
