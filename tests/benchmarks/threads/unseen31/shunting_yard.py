"""Learns to sort wagons in a shunting yard: looks one move ahead and fits a value network to the outcome."""

import copy
import itertools
import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1100"))

TRACKS, WAGONS, KINDS = 4, 12, 5


class TrainJudge:
    """What a finished stretch of wagons is worth, looked up by the kinds of its last four wagons."""

    def __init__(self):
        self.worth = {}
        for kinds in itertools.product(range(KINDS), repeat=4):
            runs = 1 + sum(a != b for a, b in zip(kinds, kinds[1:]))
            ordered = sum(a <= b for a, b in zip(kinds, kinds[1:]))
            self.worth[kinds] = (4 - runs) + 0.5 * ordered

    def evaluate(self, track):
        return self.worth[tuple(track[-4:])] if len(track) >= 4 else 0.0


JUDGE = TrainJudge()


class Yard:
    def __init__(self, rng):
        self.judge = JUDGE if VARIANT == "a" else None
        self.arriving = [rng.randrange(KINDS) for _ in range(WAGONS)]
        self.tracks = [[] for _ in range(TRACKS)]
        self.score = 0.0

    def legal_moves(self):
        return [t for t in range(TRACKS) if len(self.tracks[t]) < 5]

    def apply_move(self, move):
        yard = copy.deepcopy(self)
        judge = yard.judge or JUDGE
        yard.tracks[move].append(yard.arriving.pop())
        yard.score += judge.evaluate(yard.tracks[move])
        return yard

    @property
    def done(self):
        return not self.arriving

    def features(self):
        row = []
        for track in self.tracks:
            last = track[-1] if track else KINDS
            row += [float(k == last) for k in range(KINDS + 1)] + [len(track) / 5]
            row += [track.count(k) / 5 for k in range(KINDS)]
        ahead = self.arriving[-3:][::-1] + [KINDS] * 3
        for kind in ahead[:3]:
            row += [float(k == kind) for k in range(KINDS + 1)]
        return row + [len(self.arriving) / WAGONS]


class ValueNet(nn.Module):
    def __init__(self, inputs, width=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.layers(x).squeeze(-1)


@torch.no_grad()
def best_move(model, yard, rng):
    """Tries every track for the next wagon and rates what comes of it."""
    after = [yard.apply_move(move) for move in yard.legal_moves()]
    if rng.random() < 0.1:
        return rng.choice(after)
    worth = model(torch.tensor([y.features() for y in after]))
    worth = worth + torch.tensor([y.score for y in after])
    return after[int(worth.argmax())]


rng = random.Random(11)
torch.manual_seed(12)
yard = Yard(rng)
model = ValueNet(len(yard.features()))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
memory, played = [], []
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        start = time.perf_counter()
    for _ in range(2):
        played.append((yard.features(), yard.score))
        yard = best_move(model, yard, rng)
        if yard.done:
            memory += [(row, yard.score - before) for row, before in played]
            memory = memory[-4000:]
            yard, played = Yard(rng), []
    batch = rng.choices(memory, k=256) if memory else [(yard.features(), 0.0)] * 256
    rows = torch.tensor([row for row, _ in batch])
    gains = torch.tensor([gain for _, gain in batch])
    loss = F.smooth_l1_loss(model(rows), gains)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
