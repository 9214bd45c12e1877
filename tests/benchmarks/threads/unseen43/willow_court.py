"""Trains a walker's policy by PPO on trajectories of many walkers that are simulated on the device."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))
SMALL = os.environ.get("SMALL") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"

WALKERS = 8 if SMALL else 512
HORIZON = 40 if SMALL else 1024
OBSERVATION, ACTION = (8, 2) if SMALL else (48, 12)
HIDDEN = 32 if SMALL else 256
MINIBATCH = 64 if SMALL else 32768
PPO_EPOCHS = 5
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
THRESHOLD = 1e-7
COLLECT_EVERY = 10
LOG_EVERY = 250


class Walkers:
    """Walkers with smooth dynamics; one falls now and then, and starts again."""

    def __init__(self):
        self.generator = torch.Generator(device=device).manual_seed(7)
        draw = lambda *shape: torch.randn(*shape, generator=self.generator, device=device)
        self.drift = draw(OBSERVATION, OBSERVATION) * 0.3 / OBSERVATION**0.5
        self.push = draw(ACTION, OBSERVATION) * 0.3 / ACTION**0.5
        self.aim = draw(OBSERVATION) / OBSERVATION**0.5
        self.state = draw(WALKERS, OBSERVATION)

    def step(self, action):
        noise = torch.randn(self.state.shape, generator=self.generator, device=device)
        moved = torch.tanh(self.state @ self.drift + action @ self.push)
        state = 0.9 * self.state + 0.3 * moved + 0.1 * noise
        reward = state @ self.aim - 0.01 * action.square().sum(dim=1)
        fallen = torch.rand(WALKERS, generator=self.generator, device=device) < 1 / 300
        self.state = torch.where(fallen.unsqueeze(1), noise, state)
        return state, reward, fallen


class ActorCritic(nn.Module):
    """Two networks of the same form, for the mean of the action and for the value."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = self.tower(ACTION), self.tower(1)
        self.log_std = nn.Parameter(torch.full((ACTION,), -0.5))

    @staticmethod
    def tower(outputs):
        return nn.Sequential(
            nn.Linear(OBSERVATION, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, outputs),
        )

    def log_prob(self, observation, action):
        scaled = (action - self.actor(observation)) * torch.exp(-self.log_std)
        return -0.5 * scaled.square().sum(dim=-1) - self.log_std.sum()

    def value(self, observation):
        return self.critic(observation).squeeze(-1)


def pad_trajectories(values, done):
    """Cuts the rows of `values` where a trajectory ends, and pads the pieces to one length."""
    ends = done.clone()
    ends[:, -1] = True
    places = ends.flatten().nonzero().squeeze(1)
    lengths = torch.diff(places, prepend=places.new_full((1,), -1))
    mask = torch.arange(int(lengths.max()), device=values.device) < lengths.unsqueeze(1)
    padded = values.new_zeros(mask.shape)
    padded[mask] = values.flatten()
    return padded, mask


def discounted_sums(td0, done):
    """For each frame the sum of what follows in its trajectory, each term with its discount."""
    walkers, length = td0.shape
    if VARIANT == "a":
        decay = torch.full_like(td0, GAMMA * LAMBDA) * (~done).float()
        lags = torch.arange(length, device=td0.device)
        later = lags.unsqueeze(1) + lags.unsqueeze(0)
        rolled = F.pad(decay, (0, length))[:, later]
        products = rolled.cumprod(dim=-1)
        weights = torch.cat([torch.ones_like(products[..., :1]), products[..., :-1]], dim=-1)
        windows = F.pad(td0, (0, length - 1)).unfold(-1, length, 1)
        return (windows * weights).sum(dim=-1)
    padded, mask = pad_trajectories(td0, done)
    lags = torch.arange(padded.shape[1], device=td0.device)
    lag = lags.unsqueeze(1) - lags.unsqueeze(0)
    powers = (GAMMA * LAMBDA) ** lag.clamp(min=0).float()
    powers = powers * (lag >= 0) * (powers >= THRESHOLD)
    return (padded @ powers)[mask].view(walkers, length)


class AdvantageEstimator:
    """Advantages and targets of the value, anew in each epoch since the critic has changed."""

    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def __call__(self, batch):
        value = self.network.value(batch["observation"])
        next_value = self.network.value(batch["next_observation"])
        not_done = (~batch["done"]).float()
        td0 = batch["reward"] + GAMMA * next_value * not_done - value
        advantage = discounted_sums(td0, batch["done"])
        batch["target"] = advantage + value
        batch["advantage"] = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        return batch


class Collector:
    """Lets all walkers walk for some time with the present policy."""

    def __init__(self, walkers, network):
        self.walkers = walkers
        self.network = network

    @torch.no_grad()
    def collect(self):
        names = ("observation", "action", "next_observation", "reward", "done")
        frames = {name: [] for name in names}
        std = torch.exp(self.network.log_std)
        for _ in range(HORIZON):
            observation = self.walkers.state
            noise = torch.randn(WALKERS, ACTION, generator=self.walkers.generator, device=device)
            action = self.network.actor(observation) + std * noise
            state, reward, fallen = self.walkers.step(action)
            for name, value in zip(names, (observation, action, state, reward, fallen)):
                frames[name].append(value)
        batch = {name: torch.stack(values, dim=1) for name, values in frames.items()}
        batch["log_prob"] = self.network.log_prob(batch["observation"], batch["action"])
        return batch


def epochs(collector, estimator):
    """Batches with fresh advantages; new ones are collected when the present one has been used enough."""
    while True:
        batch = collector.collect()
        for _ in range(PPO_EPOCHS * COLLECT_EVERY):
            yield estimator(batch)


def main():
    torch.manual_seed(0)
    network = ActorCritic().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4)
    source = epochs(Collector(Walkers(), network), AdvantageEstimator(network))
    picker = torch.Generator(device=device).manual_seed(2)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = next(source)
        chosen = torch.randint(0, WALKERS * HORIZON, (MINIBATCH,), generator=picker, device=device)
        pick = lambda name: batch[name].flatten(0, 1).index_select(0, chosen)
        observation, advantage = pick("observation"), pick("advantage")
        ratio = torch.exp(network.log_prob(observation, pick("action")) - pick("log_prob"))
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        value_loss = F.smooth_l1_loss(network.value(observation), pick("target"))
        loss = -surrogate.mean() + 0.5 * value_loss - 0.001 * network.log_std.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        last = loss.detach()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {last.item():.4f}, reward {batch['reward'].mean().item():.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
