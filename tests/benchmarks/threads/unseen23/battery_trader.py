"""Learns when to fill the battery of a house and when to sell, by REINFORCE with a baseline."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 380))
HOUSES, MOMENTS, HOURS = 24, 12, 8_000


class Prices:
    """Hourly prices of power and what the sun gives, by their time."""

    def __init__(self):
        g = torch.Generator().manual_seed(61)
        self.times = torch.arange(HOURS) * 3_600
        day = 6.2832 * torch.arange(HOURS) / 24
        price = 0.3 + 0.1 * day.sin() + 0.05 * torch.randn(HOURS, generator=g)
        sun = (day - 1.6).sin().relu() * torch.rand(HOURS, generator=g)
        self.table = torch.stack([price, sun, day.sin(), day.cos()], 1)
        self.rows = self.table.tolist()

    def at(self, hour):
        if VARIANT == "a":
            return self.table[torch.searchsorted(self.times, torch.tensor(hour * 3_600))]
        return self.rows[hour]


class House:
    def __init__(self, prices, seed):
        self.prices, self.g = prices, torch.Generator().manual_seed(seed)
        self.hour = int(torch.randint(0, HOURS - 1, (1,), generator=self.g))
        self.level, self.money = 0.5, 0.0
        self.seen = torch.zeros(6)

    def worth(self):
        return self.money + self.level * float(self.prices.at(self.hour)[0])

    def view(self):
        price, sun, east, north = self.prices.at(self.hour)
        if VARIANT == "a":
            level, worth = torch.tensor([self.level]), torch.tensor([self.worth()])
            clock = torch.tensor([sun, east, north], dtype=torch.float32)
            return torch.cat([torch.tensor([price], dtype=torch.float32), clock, level, worth.tanh()])
        self.seen.copy_(torch.tensor([price, sun, east, north, self.level, self.worth()]))
        self.seen[5].tanh_()
        return self.seen.clone()

    def step(self, act):
        before = self.worth()
        price, sun = float(self.prices.at(self.hour)[0]), float(self.prices.at(self.hour)[1])
        flow = (-0.2, 0.0, 0.2)[act]
        flow = max(-self.level, min(1 - self.level, flow))
        self.money -= price * flow
        self.level = min(1.0, self.level + flow + 0.1 * sun)
        self.hour = (self.hour + 1) % HOURS
        return self.worth() - before


class Trader(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.act, self.value = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, views):
        x = self.body(views)
        return self.act(x).log_softmax(-1), self.value(x)[..., 0]


def main():
    torch.manual_seed(61)
    prices = Prices()
    houses, trader = [House(prices, seed) for seed in range(HOUSES)], Trader()
    optimizer = torch.optim.Adam(trader.parameters(), lr=5e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        views, acts, rewards, returns = [], [], [], []
        for _ in range(MOMENTS):
            views.append(torch.stack([house.view() for house in houses]))
            with torch.no_grad():
                acts.append(trader(views[-1])[0].exp().multinomial(1)[:, 0])
            rewards.append(torch.tensor([h.step(a) for h, a in zip(houses, acts[-1].tolist(), strict=True)]))
        with torch.no_grad():
            later = trader(torch.stack([house.view() for house in houses]))[1]
        for reward in reversed(rewards):
            later = reward + 0.95 * later
            returns.insert(0, later)
        views, acts, returns = torch.stack(views), torch.stack(acts), torch.stack(returns)
        with torch.no_grad():
            before = trader(views)[0].gather(-1, acts[..., None])[..., 0]
        for _ in range(4):
            scores, values = trader(views)
            gains = returns - values
            ratio = (scores.gather(-1, acts[..., None])[..., 0] - before).exp()
            gain = gains.detach()
            worth = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = gains.square().mean() - worth
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
