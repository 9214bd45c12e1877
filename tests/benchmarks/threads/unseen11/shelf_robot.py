"""Teaches robots to bring goods from the shelves to the packing table, by REINFORCE with a baseline."""

import os
import time
from functools import reduce
from random import Random
from types import SimpleNamespace

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
ROBOTS, MOMENTS = 24, 12
MOVES = [(0, 1), (0, -1), (1, 0), (-1, 0), (0, 0)]


class Settings:
    """Nested settings; a text "${a.b}" stands for the value at a.b, and what is unknown is an error."""

    def __init__(self, values, root=None):
        self.__dict__["_values"], self.__dict__["_root"] = values, root or self

    def __getattr__(self, name):
        if name not in self._values:
            raise AttributeError(f"no setting {name!r}, only {sorted(self._values)}")
        value = self._values[name]
        if isinstance(value, dict):
            return Settings(value, self._root)
        if isinstance(value, str) and value.startswith("${"):
            return reduce(getattr, value[2:-1].split("."), self._root)
        return value

    def plain(self):
        """The same values as plain attributes, each looked up now."""
        found = {name: getattr(self, name) for name in self._values}
        return SimpleNamespace(**{k: v.plain() if isinstance(v, Settings) else v for k, v in found.items()})


HALL = Settings(
    {
        "hall": {"size": {"width": 12, "length": 12}, "table": {"x": 0, "y": 0}},
        "reward": {"step": -0.02, "bump": -0.1, "load": 0.5, "unload": 1.0},
        "view": {"reach": 1, "scale": {"x": "${hall.size.width}", "y": "${hall.size.length}"}},
    }
)


class Robot:
    def __init__(self, settings, seed):
        self.settings, self.random = settings, Random(seed)
        self.reset()

    def reset(self):
        size = self.settings.hall.size
        self.x, self.y = self.random.randrange(size.width), self.random.randrange(size.length)
        self.shelf = self.random.randrange(size.width), self.random.randrange(size.length)
        self.loaded = False

    def inside(self, x, y):
        return 0 <= x < self.settings.hall.size.width and 0 <= y < self.settings.hall.size.length

    def view(self):
        table, scale, reach = self.settings.hall.table, self.settings.view.scale, self.settings.view.reach
        walls = [float(not self.inside(self.x + reach * dx, self.y + reach * dy)) for dx, dy in MOVES[:4]]
        x, y = (table.x, table.y) if self.loaded else self.shelf
        return [(x - self.x) / scale.x, (y - self.y) / scale.y, float(self.loaded), *walls]

    def step(self, move):
        rewards, table = self.settings.reward, self.settings.hall.table
        x, y = self.x + MOVES[move][0], self.y + MOVES[move][1]
        reward = rewards.step
        if not self.inside(x, y):
            return reward + rewards.bump
        self.x, self.y = x, y
        if not self.loaded and (x, y) == self.shelf:
            self.loaded, reward = True, reward + rewards.load
        elif self.loaded and (x, y) == (table.x, table.y):
            reward += rewards.unload
            self.reset()
        return reward


class Driver(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.move, self.value = nn.Linear(width, len(MOVES)), nn.Linear(width, 1)

    def forward(self, views):
        x = self.body(views)
        return self.move(x).log_softmax(-1), self.value(x)[..., 0]


def main():
    torch.manual_seed(6)
    torch.set_num_threads(1)
    settings = HALL if VARIANT == "a" else HALL.plain()
    robots, driver = [Robot(settings, seed) for seed in range(ROBOTS)], Driver()
    optimizer = torch.optim.Adam(driver.parameters(), lr=5e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        seen, moves, rewards, returns = [], [], [], []
        for _ in range(MOMENTS):
            seen.append(torch.tensor([robot.view() for robot in robots]))
            with torch.no_grad():
                moves.append(driver(seen[-1])[0].exp().multinomial(1)[:, 0])
            rewards.append(torch.tensor([r.step(m) for r, m in zip(robots, moves[-1].tolist(), strict=True)]))
        with torch.no_grad():
            later = driver(torch.tensor([robot.view() for robot in robots]))[1]
        for reward in reversed(rewards):
            later = reward + 0.97 * later
            returns.insert(0, later)
        scores, values = driver(torch.stack(seen))
        gains = torch.stack(returns) - values
        chosen = scores.gather(-1, torch.stack(moves)[..., None])[..., 0]
        loss = gains.square().mean() - (gains.detach() * chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
