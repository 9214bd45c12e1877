"""Parks delivery robots at charging docks: soft actor-critic from a memory of former moments."""

import copy
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 380))
ROBOTS, BATCH, ROOM, SEEN, MOVES = 16, 256, 20_000, 12, 3


class Depot:
    def __init__(self, seed=23):
        self.rng = np.random.default_rng(seed)
        self.place, self.speed, self.dock = (self.rng.normal(size=(ROBOTS, MOVES)) for _ in range(3))
        self.battery = self.rng.uniform(0.5, 1, (ROBOTS, MOVES))
        self.age = self.rng.integers(0, 80, ROBOTS)

    def view(self):
        return np.concatenate([self.place, self.speed, self.dock, self.battery], 1).astype(np.float32)

    def step(self, moves):
        self.speed = 0.9 * self.speed + 0.1 * moves
        self.place = self.place + 0.2 * self.speed
        self.battery = self.battery - 0.002 * np.abs(moves)
        away = np.linalg.norm(self.place - self.dock, axis=1)
        self.age += 1
        over = self.age >= 80
        legs = zip(away.tolist(), self.place.tolist(), self.dock.tolist(), over.tolist(), strict=True)
        infos = [{"away": a, "legs": {"x": p, "dock": d}, "late": o} for a, p, d, o in legs]
        self.place[over] = self.rng.normal(size=(over.sum(), MOVES))
        self.battery[over], self.age[over] = 1.0, 0
        return self.view(), -away.astype(np.float32), infos


class Memory:
    def __init__(self):
        self.before, self.after = (np.zeros((ROOM, SEEN), np.float32) for _ in range(2))
        self.moves, self.reward = np.zeros((ROOM, MOVES), np.float32), np.zeros(ROOM, np.float32)
        self.infos = np.empty(ROOM, object)
        self.rng, self.next, self.size = np.random.default_rng(5), 0, 0

    def add(self, before, moves, reward, after, infos):
        rows = (self.next + np.arange(ROBOTS)) % ROOM
        self.before[rows], self.after[rows] = before, after
        self.moves[rows], self.reward[rows] = moves, reward
        self.infos[rows] = infos
        self.next, self.size = (self.next + ROBOTS) % ROOM, min(self.size + ROBOTS, ROOM)

    def sample(self):
        rows = self.rng.integers(0, self.size, BATCH)
        infos = copy.deepcopy(self.infos[rows]) if VARIANT == "a" else [{} for _ in rows]
        arrays = (self.before[rows], self.moves[rows], self.reward[rows], self.after[rows])
        return *(torch.from_numpy(x) for x in arrays), infos


def net(into, out, width=192):
    return nn.Sequential(
        nn.Linear(into, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out)
    )


class Agent:
    def __init__(self):
        self.actor, self.critic = net(SEEN, 2 * MOVES), net(SEEN + MOVES, 1)
        self.target = copy.deepcopy(self.critic)
        self.on_actor, self.on_critic = (
            torch.optim.Adam(n.parameters(), 1e-3) for n in (self.actor, self.critic)
        )

    def act(self, seen):
        mean, scale = self.actor(seen).chunk(2, -1)
        scale, noise = scale.clamp(-4, 1).exp(), torch.randn_like(mean)
        moves = torch.tanh(mean + scale * noise)
        chance = (-0.5 * noise.square() - scale.log() - torch.log1p(1e-4 - moves.square())).sum(-1)
        return moves, chance

    def learn(self, before, moves, reward, after):
        with torch.no_grad():
            later, chance = self.act(after)
            wanted = reward + 0.97 * (self.target(torch.cat([after, later], -1))[:, 0] - 0.1 * chance)
        loss = F.mse_loss(self.critic(torch.cat([before, moves], -1))[:, 0], wanted)
        self.on_critic.zero_grad()
        loss.backward()
        self.on_critic.step()
        chosen, chance = self.act(before)
        regret = (0.1 * chance - self.critic(torch.cat([before, chosen], -1))[:, 0]).mean()
        self.on_actor.zero_grad()
        regret.backward()
        self.on_actor.step()
        for old, new in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            old.data.lerp_(new.data, 0.01)
        return loss


def main():
    torch.manual_seed(23)
    depot, memory, agent = Depot(), Memory(), Agent()
    seen = depot.view()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        for _ in range(4):
            with torch.no_grad():
                moves = agent.act(torch.from_numpy(seen))[0].numpy()
            after, reward, infos = depot.step(moves)
            memory.add(seen, moves, reward, after, infos)
            seen = after
        for _ in range(6):
            *batch, _ = memory.sample()
            loss = agent.learn(*batch)
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
