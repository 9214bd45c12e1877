"""Forecasts the load of a grid from trend, seasons and lags; a board shows how it goes."""

import collections
import math
import os
import tempfile
import time
import unicodedata

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1500"))
HOURS, LAGS, AHEAD, SITES = 4000, 168, 24, 60
BATCH, WIDTH = 1024, 480
COLUMNS, KEPT = 144, 120


def make_loads():
    t = torch.arange(HOURS).float()
    daily = torch.sin(2 * math.pi * t / 24 + torch.rand(SITES, 1) * 6)
    weekly = torch.cos(2 * math.pi * t / 168 + torch.rand(SITES, 1) * 6)
    return daily + 0.5 * weekly + 0.0002 * t + 0.2 * torch.randn(SITES, HOURS)


class PrairieNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trend = nn.Parameter(torch.zeros(SITES, 2))
        self.season = nn.Linear(12, AHEAD)
        self.lags = nn.Sequential(
            nn.Linear(LAGS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, AHEAD)
        )

    def forward(self, site, hour, past):
        offset, slope = self.trend[site].unbind(1)
        waves = [f(2 * math.pi * k * hour / 24) for k in range(1, 7) for f in (torch.sin, torch.cos)]
        trend = offset[:, None] + slope[:, None] * hour[:, None] / HOURS
        return {
            "trend": trend.expand(-1, AHEAD),
            "season": self.season(torch.stack(waves, 1)),
            "lags": self.lags(past),
        }


class PlainLine:
    def __init__(self, stream):
        self.stream, self.last = stream, 0.0

    def update(self, step, metrics):
        now = time.monotonic()
        if now - self.last > 0.1:
            self.last = now
            text = ", ".join(f"{name}={value:.4f}" for name, value in metrics.items())
            self.stream.write(f"\r{step}/{STEPS} {text}")
            self.stream.flush()


class PrairieBoard:
    """A table of all metrics with their recent course, in colours."""

    def __init__(self, stream):
        self.stream, self.marks = stream, " ▁▂▃▄▅▆▇█"
        self.calm, self.warm = (70, 130, 240), (250, 110, 60)
        self.history = collections.defaultdict(lambda: collections.deque(maxlen=KEPT))

    def row(self, name, values):
        low, spread = min(values), (max(values) - min(values)) or 1.0
        segments = [(f"{name:>12} {values[-1]:9.4f} ", "1")]
        for value in values:
            part = (value - low) / spread
            shade = ";".join(str(int(a + (b - a) * part)) for a, b in zip(self.calm, self.warm))
            segments.append((self.marks[int(part * 8)], f"38;2;{shade}"))
        return segments

    def fit(self, segments, width):
        fitted, used = [], 0
        for text, style in segments:
            size = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
            if used + size > width:
                break
            fitted.append((text, style))
            used += size
        return fitted + [(" " * (width - used), "0")]

    def update(self, step, metrics):
        done = (COLUMNS - 12) * step // STEPS
        lines = [[("━" * done, "38;5;57"), ("─" * (COLUMNS - 12 - done), "2"), (f" {step}/{STEPS}", "0")]]
        for name, value in metrics.items():
            self.history[name].append(value)
            lines.append(self.row(name, list(self.history[name])))
        frame = ["\x1b[H"]
        for segments in lines:
            frame += [f"\x1b[{style}m{text}\x1b[0m" for text, style in self.fit(segments, COLUMNS)]
            frame.append("\n")
        self.stream.seek(0)
        self.stream.write("".join(frame))
        self.stream.flush()


def main():
    torch.manual_seed(12)
    loads = make_loads()
    model = PrairieNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stream = tempfile.TemporaryFile("w+")
    bar = PrairieBoard(stream) if VARIANT == "a" else PlainLine(stream)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        site = torch.randint(SITES, (BATCH,))
        hour = torch.randint(LAGS, HOURS - AHEAD, (BATCH,))
        window = loads[site[:, None], hour[:, None] + torch.arange(-LAGS, AHEAD)]
        parts = model(site, hour.float(), window[:, :LAGS])
        errors = sum(parts.values()) - window[:, LAGS:]
        loss = F.smooth_l1_loss(errors, torch.zeros_like(errors))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            metrics = {"loss": loss.item(), "mae": errors.abs().mean().item()}
            metrics.update({k: v.abs().mean().item() for k, v in parts.items()})
            metrics.update({f"mae_{i + 1}h": v for i, v in enumerate(errors.abs().mean(0).tolist())})
        bar.update(step, metrics)
    took = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * took / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
