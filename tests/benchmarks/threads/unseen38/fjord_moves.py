"""Trains a network that plans board moves from stored games, drawn by their priority."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "900"))
GAMES, SIDE, MOVES, UNROLL = 4000, 6, 36, 4
BATCH, WIDTH, HIDDEN = 96, 32, 160


class FjordGame:
    def __init__(self, rng):
        length = int(rng.integers(12, 30))
        self.boards = rng.integers(-1, 2, (length, 3, SIDE, SIDE)).astype(np.float32)
        self.moves = rng.integers(0, MOVES, length)
        self.visits = rng.dirichlet(np.ones(MOVES), length).astype(np.float32)
        self.values = self.boards.mean((1, 2, 3)).astype(np.float32) * 5
        self.priorities = np.abs(self.values) + 0.05
        self.game_priority = float(self.priorities.max())


class FjordBuffer:
    def __init__(self):
        rng = np.random.default_rng(8)
        self.games = {i: FjordGame(rng) for i in range(GAMES)}
        self.draws = np.random.RandomState(1)
        self.places = np.random.RandomState(2)

    def sample_game(self):
        chances = np.array([game.game_priority for game in self.games.values()], dtype="float32")
        chances /= np.sum(chances)
        index = self.draws.choice(len(self.games), p=chances)
        return index, self.games[index], chances[index]

    def sample_games(self, count):
        chances = np.array([game.game_priority for game in self.games.values()], dtype="float32")
        chances /= np.sum(chances)
        chosen = self.draws.choice(len(self.games), count, p=chances)
        return [(i, self.games[i], chances[i]) for i in chosen]

    def sample_position(self, game):
        chances = game.priorities / game.priorities.sum()
        place = int(np.searchsorted(chances.cumsum(), self.places.random_sample()))
        return min(place, len(game.moves) - 1), chances

    def get_batch(self):
        if VARIANT == "a":
            drawn = [self.sample_game() for _ in range(BATCH)]
        else:
            drawn = self.sample_games(BATCH)
        boards, moves, values, visits, weights = [], [], [], [], []
        for _, game, chance in drawn:
            place, chances = self.sample_position(game)
            window = np.minimum(np.arange(place, place + UNROLL + 1), len(game.moves) - 1)
            boards.append(game.boards[place])
            moves.append(game.moves[window[:-1]])
            values.append(game.values[window])
            visits.append(game.visits[window])
            weights.append(1.0 / (GAMES * chance * chances[place]))
        weights = np.array(weights, dtype="float32") / max(weights)
        stacked = [np.stack(x) for x in (boards, moves, values, visits)]
        return [torch.from_numpy(x) for x in stacked + [weights]]


class FjordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(),
        )
        self.state = nn.Linear(WIDTH * SIDE * SIDE, HIDDEN)
        self.move = nn.Embedding(MOVES, HIDDEN)
        self.dynamics = nn.Sequential(nn.Linear(2 * HIDDEN, 256), nn.ReLU(), nn.Linear(256, HIDDEN))
        self.value = nn.Sequential(nn.Linear(HIDDEN, 128), nn.ReLU(), nn.Linear(128, 1))
        self.policy = nn.Sequential(nn.Linear(HIDDEN, 128), nn.ReLU(), nn.Linear(128, MOVES))

    def forward(self, boards, moves):
        state = torch.tanh(self.state(self.trunk(boards).flatten(1)))
        outputs = [(self.value(state)[:, 0], self.policy(state))]
        for i in range(UNROLL):
            state = torch.tanh(state + self.dynamics(torch.cat([state, self.move(moves[:, i])], 1)))
            outputs.append((self.value(state)[:, 0], self.policy(state)))
        return outputs


def main():
    torch.manual_seed(6)
    buffer = FjordBuffer()
    model = FjordNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        boards, moves, values, visits, weights = buffer.get_batch()
        loss = 0.0
        for i, (value, policy) in enumerate(model(boards, moves)):
            part = 0.25 * (value - values[:, i]) ** 2 - (visits[:, i] * F.log_softmax(policy, 1)).sum(1)
            loss = loss + (weights * part).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * took / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
