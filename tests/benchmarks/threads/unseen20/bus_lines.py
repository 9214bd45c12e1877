"""Delays of a city's buses: stops pass messages along their lines, and each line to its stops."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
CITIES = int(os.environ.get("CITIES", 4))
LINES = int(os.environ.get("LINES", 24))
WIDTH = int(os.environ.get("WIDTH", 128))
ROUNDS = int(os.environ.get("ROUNDS", 24))
MICRO = 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def spread(rows, counts, total):
    """Each row as often as its count says."""
    if VARIANT == "b":
        return torch.repeat_interleave(rows, counts, 0, output_size=total)
    return torch.repeat_interleave(rows, counts, 0)


class Round(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(3 * width, width), nn.SiLU())
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU())
        self.line_update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU())
        self.norm, self.line_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, stops, lines, city):
        sent = spread(stops, city["ways"], city["way_total"])
        of_line = spread(spread(lines, city["stops"], city["stop_total"]), city["ways"], city["way_total"])
        message = self.message(torch.cat([sent, stops.index_select(0, city["to"]), of_line], -1))
        heard = torch.zeros_like(stops).index_add(0, city["to"], message)
        stops = self.norm(stops + self.update(torch.cat([stops, heard], -1)))
        heard = torch.zeros_like(lines).index_add(0, city["line"], stops)
        return stops, self.line_norm(lines + self.line_update(torch.cat([lines, heard], -1)))


class DelayModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.stops, self.lines = nn.Linear(12, WIDTH), nn.Linear(6, WIDTH)
        self.rounds = nn.ModuleList([Round(WIDTH) for _ in range(ROUNDS)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, city):
        stops, lines = self.stops(city["stop_rows"]), self.lines(city["line_rows"])
        for each in self.rounds:
            stops, lines = each(stops, lines, city)
        return self.head(stops).squeeze(-1)


def draw_city():
    stops = torch.randint(20, 60, (LINES,))
    count = int(stops.sum())
    ways = torch.randint(1, 6, (count,))
    total = int(ways.sum())
    rows = torch.randn(count, 12)
    city = {
        "stops": stops, "ways": ways, "stop_rows": rows, "line_rows": torch.randn(LINES, 6),
        "line": torch.arange(LINES).repeat_interleave(stops), "to": torch.randint(0, count, (total,)),
        "delay": rows[:, :4].sum(1).tanh(),
    }  # fmt: skip
    return {k: v.to(device) for k, v in city.items()} | {"stop_total": count, "way_total": total}


def main():
    torch.manual_seed(17)
    model = DelayModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    cities = [draw_city() for _ in range(CITIES * MICRO)]
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for k in range(MICRO):
            city = cities[(step * MICRO + k) % len(cities)]
            loss = F.smooth_l1_loss(model(city), city["delay"]) / MICRO
            loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
