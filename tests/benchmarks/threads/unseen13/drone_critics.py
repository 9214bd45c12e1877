"""Teaches drones to hover over moving ships: soft actor-critic with two critics."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 340))
SENSORS, MOTORS, BATCH, WIDTH, STORE = 40, 8, 512, 512, 20_000


def make_flights():
    g = torch.Generator().manual_seed(14)
    seen = torch.randn(STORE, SENSORS, generator=g)
    done = torch.rand(STORE, MOTORS, generator=g) * 2 - 1
    push = torch.randn(MOTORS, SENSORS, generator=g) / MOTORS**0.5
    after = 0.9 * seen + 0.3 * done @ push
    reward = -after[:, :6].square().mean(1, keepdim=True) - 0.05 * done.square().mean(1, keepdim=True)
    return seen, done, reward, after


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(SENSORS + MOTORS, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )

    def forward(self, x):
        return self.net(x)


class Both(nn.Module):
    """Two critics of the same pair of what was seen and done."""

    def __init__(self):
        super().__init__()
        self.critics = nn.ModuleList([Critic(), Critic()])
        if VARIANT == "b":
            layers = [[c.net[i] for c in self.critics] for i in (0, 2, 4)]
            self.weights = nn.ParameterList(
                torch.stack([m.weight.T for m in pair]).detach() for pair in layers
            )
            self.biases = nn.ParameterList(
                torch.stack([m.bias[None] for m in pair]).detach() for pair in layers
            )
            del self.critics

    def forward(self, seen, done):
        x = torch.cat([seen, done], 1)
        if VARIANT == "a":
            return torch.stack([critic(x) for critic in self.critics])
        x = x.expand(2, -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x.relu() if i < 2 else x
        return x


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(SENSORS, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 2 * MOTORS),
        )

    def forward(self, seen):
        mean, log_scale = self.net(seen).chunk(2, 1)
        log_scale = log_scale.clamp(-5, 2)
        noise = torch.randn_like(mean)
        done = torch.tanh(mean + noise * log_scale.exp())
        chance = -0.5 * noise.square() - log_scale - (1 - done.square() + 1e-6).log()
        return done, chance.sum(1, keepdim=True)


def main():
    torch.manual_seed(14)
    flights = make_flights()
    actor, critics, later = Actor(), Both(), Both()
    later.load_state_dict(critics.state_dict())
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, STORE, (BATCH,))
        seen, done, reward, after = (x[rows] for x in flights)
        with torch.no_grad():
            then, chance = actor(after)
            wanted = reward + 0.97 * (later(after, then).amin(0) - 0.1 * chance)
        loss = F.mse_loss(critics(seen, done), wanted.expand(2, -1, -1))
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        now, chance = actor(seen)
        worth = (0.1 * chance - critics(seen, now).amin(0)).mean()
        actor_optimizer.zero_grad()
        worth.backward()
        actor_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(later.parameters()), list(critics.parameters()), 0.005)
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
