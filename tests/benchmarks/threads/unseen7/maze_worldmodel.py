"""A world model of mazes: a recurrent state space with categorical latents (Dreamer's)."""

import os
import time

import torch
from torch import nn
from torch.distributions import (
    Distribution,
    Independent,
    Normal,
    OneHotCategoricalStraightThrough,
    kl_divergence,
)

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
BATCH = int(os.environ.get("BATCH", 16))
LENGTH = int(os.environ.get("LENGTH", 50))
HIDDEN = int(os.environ.get("HIDDEN", 512))
GROUPS, CLASSES = 32, 32
VIEW, MOVES, MAZES = 256, 6, 8
device = torch.device(os.environ.get("DEVICE", "cuda"))
if VARIANT == "b":
    Distribution.set_default_validate_args(False)


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.LayerNorm(HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, outputs)
    )


def categorical(logits):
    logits = logits.unflatten(-1, (GROUPS, CLASSES))
    mixed = 0.99 * logits.softmax(-1) + 0.01 / CLASSES
    return Independent(OneHotCategoricalStraightThrough(logits=mixed.log()), 1)


class StateSpace(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Sequential(nn.Linear(GROUPS * CLASSES + MOVES, HIDDEN), nn.SiLU())
        self.cell = nn.GRUCell(HIDDEN, HIDDEN)
        self.prior = mlp(HIDDEN, GROUPS * CLASSES)
        self.posterior = mlp(2 * HIDDEN, GROUPS * CLASSES)

    def step(self, state, latent, move, seen):
        state = self.cell(self.inward(torch.cat([latent, move], -1)), state)
        prior = categorical(self.prior(state))
        posterior = categorical(self.posterior(torch.cat([state, seen], -1)))
        return state, posterior.rsample().flatten(1), prior, posterior


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = mlp(VIEW, HIDDEN)
        self.space = StateSpace()
        self.decode = mlp(HIDDEN + GROUPS * CLASSES, VIEW)
        self.reward = mlp(HIDDEN + GROUPS * CLASSES, 1)

    def forward(self, views, moves, rewards):
        seen = self.encode(views)
        state = views.new_zeros(views.shape[1], HIDDEN)
        latent = views.new_zeros(views.shape[1], GROUPS * CLASSES)
        features, drift = [], []
        for t in range(views.shape[0]):
            state, latent, prior, posterior = self.space.step(state, latent, moves[t], seen[t])
            features.append(torch.cat([state, latent], -1))
            drift.append(kl_divergence(posterior, prior))
        features = torch.stack(features)
        picture = Independent(Normal(self.decode(features), 1.0), 1).log_prob(views)
        payoff = Normal(self.reward(features)[..., 0], 1.0).log_prob(rewards)
        drift = torch.stack(drift).clamp(min=1.0)
        return (drift - picture - payoff).mean()


def wander(count):
    views = torch.zeros(LENGTH, count, VIEW)
    moves = torch.randint(0, MOVES, (LENGTH, count))
    side = int(VIEW**0.5)
    x, y = torch.randint(0, side, (2, count))
    for t in range(LENGTH):
        x = (x + (moves[t] == 0).long() - (moves[t] == 1).long()) % side
        y = (y + (moves[t] == 2).long() - (moves[t] == 3).long()) % side
        views[t, torch.arange(count), x * side + y] = 4.0
    rewards = views[..., : VIEW // 8].sum(-1)
    return views, nn.functional.one_hot(moves, MOVES).float(), rewards


def main():
    torch.manual_seed(41)
    model = WorldModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    views, moves, rewards = (x.to(device) for x in wander(MAZES * BATCH))
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % MAZES * BATCH, (step % MAZES + 1) * BATCH)
        loss = model(views[:, rows], moves[:, rows], rewards[:, rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
