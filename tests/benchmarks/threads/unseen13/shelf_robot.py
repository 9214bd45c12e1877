"""Learns to set boxes on a shelf from films of a robot's work, kept in memory, by imitation."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 420))
EPISODES, LENGTH, SIDE, FRAMES, MOTORS, BATCH = 30, 120, 48, 3, 5, 64


def make_films():
    """A bright box goes to a dark shelf; the motors follow the way between the two."""
    rng = np.random.default_rng(61)
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    films, moves, firsts = [], [], []
    for episode in range(EPISODES):
        box, shelf, speed = rng.uniform(8, 40, 2), rng.uniform(8, 40, 2), np.zeros(2)
        mix = rng.normal(0, 0.1, (2, MOTORS))
        mix[:, :2] += np.eye(2)
        for _ in range(LENGTH):
            speed = 0.8 * speed + 0.02 * (shelf - box) + rng.normal(0, 0.2, 2)
            box = box + speed
            near = np.exp(-((y - box[0]) ** 2 + (x - box[1]) ** 2) / 18)
            far = np.exp(-((y - shelf[0]) ** 2 + (x - shelf[1]) ** 2) / 30)
            films.append(
                (np.stack([120 + 120 * near, 120 - 100 * far, 120 + 60 * near - 60 * far], -1)).astype(
                    np.uint8
                )
            )
            moves.append(speed @ mix)
            firsts.append(episode * LENGTH)
    return np.stack(films), np.array(moves, np.float32), np.array(firsts)


class Memory:
    """All films in a row; a sample is a picture with the two before it, or the first one again."""

    def __init__(self, films, moves, firsts):
        self.films, self.moves, self.firsts = films, moves, firsts
        self.rng = np.random.default_rng(62)
        self.joined = None if VARIANT == "a" else self.history(np.arange(len(films)))

    def history(self, rows):
        views = [self.films[np.maximum(rows - back, self.firsts[rows])] for back in reversed(range(FRAMES))]
        return np.concatenate(views, -1)

    def sample(self, size):
        rows = self.rng.integers(0, len(self.films) - 1, size)
        now, after = (self.history(r) if self.joined is None else self.joined[r] for r in (rows, rows + 1))
        return torch.from_numpy(now), torch.from_numpy(after), torch.from_numpy(self.moves[rows])


def shift(pictures, pad=3):
    """Moves each picture of a batch by a few pixels."""
    count, *_, height, width = pictures.shape
    wide = F.pad(pictures, (pad, pad, pad, pad), mode="replicate")
    down, right = torch.randint(0, 2 * pad + 1, (2, count, 1))
    rows = (down + torch.arange(height))[:, None, :, None]
    columns = (right + torch.arange(width))[:, None, None, :]
    return wide[
        torch.arange(count)[:, None, None, None],
        torch.arange(pictures.shape[1])[:, None, None],
        rows,
        columns,
    ]


class ShelfPolicy(nn.Module):
    """Motors from the pictures; what the pictures will be like is foretold beside it."""

    def __init__(self, width=24):
        super().__init__()
        layers, inputs = [], 3 * FRAMES
        for outputs in (width, width, 2 * width, 2 * width):
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
            inputs = outputs
        self.see = nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * inputs, 128), nn.LayerNorm(128))
        self.move = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, MOTORS))
        self.foretell = nn.Sequential(nn.Linear(128 + MOTORS, 256), nn.ReLU(), nn.Linear(256, 128))

    def forward(self, now, after, moves):
        seen = self.see(now)
        with torch.no_grad():
            ahead = self.see(after)
        told = self.foretell(torch.cat([seen, moves], 1))
        return self.move(seen), 1 - F.cosine_similarity(told, ahead).mean()


def main():
    torch.manual_seed(61)
    memory = Memory(*make_films())
    model = ShelfPolicy()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        now, after, moves = memory.sample(BATCH)
        now, after = (p.permute(0, 3, 1, 2).float() / 255 - 0.5 for p in (now, after))
        done, surprise = model(shift(now), after, moves)
        loss = F.mse_loss(done, moves) + 0.1 * surprise
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
