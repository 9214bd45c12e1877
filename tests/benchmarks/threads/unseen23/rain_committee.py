"""Forecasts tomorrow's rain at stations, with a committee whose disagreement tells how sure it is."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 420))
STATIONS, DAYS, BATCH, MEMBERS, WIDTH = 64, 3_000, 192, 32, 48


def make_weather():
    """Fronts that travel over the stations, and what the stations measure of them."""
    g = torch.Generator().manual_seed(14)
    time_of = torch.arange(DAYS).float()[:, None, None]
    place = torch.rand(1, STATIONS, 1, generator=g)
    speed = torch.linspace(0.1, 0.9, 6)
    fronts = (time_of * speed + 7 * place).sin()
    noise = 0.2 * torch.randn(DAYS, STATIONS, 6, generator=g)
    rain = (fronts[:, :, :3].sum(-1) + fronts[:, :, 3] * fronts[:, :, 4]).relu()
    return fronts + noise, rain


class Members(nn.Module):
    """The heads of the committee: each is a small network of its own."""

    def __init__(self, inputs):
        super().__init__()
        sizes = [inputs, WIDTH, WIDTH, 1]
        heads = [[nn.Linear(i, o) for i, o in zip(sizes, sizes[1:], strict=False)] for _ in range(MEMBERS)]
        if VARIANT == "a":
            self.heads = nn.ModuleList([nn.Sequential(h[0], nn.SiLU(), h[1], nn.SiLU(), h[2]) for h in heads])
        else:
            layers = [[h[n] for h in heads] for n in range(3)]
            weights = [torch.stack([m.weight.t() for m in n]).detach() for n in layers]
            biases = [torch.stack([m.bias for m in n])[:, None].detach() for n in layers]
            self.weights, self.biases = nn.ParameterList(weights), nn.ParameterList(biases)

    def forward(self, x):
        if VARIANT == "a":
            return torch.stack([head(x) for head in self.heads])[..., 0]
        x = x.expand(MEMBERS, -1, -1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = nn.functional.silu(x) if number < 2 else x
        return x[..., 0]


class Forecast(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.past = nn.GRU(6, width, batch_first=True)
        self.members = Members(width)

    def forward(self, days):
        return self.members(self.past(days)[1][0])


def main():
    torch.manual_seed(14)
    measured, rain = make_weather()
    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        day = torch.randint(12, DAYS - 1, (BATCH,))
        station = torch.randint(0, STATIONS, (BATCH,))
        past = measured[day[:, None] - torch.arange(11, -1, -1), station[:, None]]
        wanted = rain[day + 1, station]
        loss = (model(past) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
