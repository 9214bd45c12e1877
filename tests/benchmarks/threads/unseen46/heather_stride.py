"""Walking robot by PPO with adversarial motion priors: policy, value and motion discriminator."""

import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 8000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
np.random.seed(0)

ENVS, HORIZON = (32, 4) if SMALL else (4096, 24)
OBSERVED, ACTIONS, MOTION = 48, 12, 45
EPOCHS, MINI_BATCHES = 5, 4
REPLAY = 2_000 if SMALL else 1_000_000
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


def mlp(sizes, activation=nn.ELU):
    layers = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class ActorCritic(nn.Module):
    """Gaussian policy and value function."""

    def __init__(self):
        super().__init__()
        self.actor = mlp([OBSERVED, 512, 256, 128, ACTIONS])
        self.critic = mlp([OBSERVED, 512, 256, 128, 1])
        self.log_std = nn.Parameter(torch.zeros(ACTIONS))

    def log_prob(self, observations, actions):
        mean = self.actor(observations)
        scaled = (actions - mean) * torch.exp(-self.log_std)
        return (-0.5 * scaled.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self):
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()


class Discriminator(nn.Module):
    """Tells transitions of the recorded motion from those of the policy."""

    def __init__(self):
        super().__init__()
        self.trunk = mlp([2 * MOTION, 512, 256, 1], nn.ReLU)

    def forward(self, states, following):
        return self.trunk(torch.cat([states, following], -1)).squeeze(-1)

    def gradient_penalty(self, states, following, weight=10.0):
        inputs = torch.cat([states, following], -1).requires_grad_()
        scores = self.trunk(inputs)
        slope = torch.autograd.grad(scores.sum(), inputs, create_graph=True)[0]
        return weight * slope.norm(2, dim=-1).square().mean()


class MotionReplay:
    """Ring of transitions of the policy; mini-batches hold each transition once at most."""

    def __init__(self, size):
        self.states = torch.zeros(size, MOTION, device=device)
        self.following = torch.zeros(size, MOTION, device=device)
        self.size, self.position, self.count = size, 0, 0

    def insert(self, states, following):
        first = min(len(states), self.size - self.position)
        self.states[self.position : self.position + first] = states[:first]
        self.following[self.position : self.position + first] = following[:first]
        if first < len(states):
            self.states[: len(states) - first] = states[first:]
            self.following[: len(states) - first] = following[first:]
        self.position = (self.position + len(states)) % self.size
        self.count = min(self.size, self.count + len(states))

    def batches(self, number, size):
        if VARIANT == "a":
            for _ in range(number):
                chosen = np.random.choice(self.count, size=size, replace=False)
                yield self.states[chosen], self.following[chosen]
        else:
            order = torch.randperm(self.count, device=device)
            for i in range(number):
                chosen = order[i * size : (i + 1) * size]
                yield self.states[chosen], self.following[chosen]


class MotionClips:
    """Recorded motion: sines with a few gaits."""

    def __init__(self, frames):
        phase = torch.arange(frames, device=device)[:, None] * 0.05
        offsets = torch.linspace(0, 2 * math.pi, MOTION, device=device)
        self.frames = torch.sin(phase + offsets) + 0.05 * torch.randn(frames, MOTION, device=device)

    def batch(self, size):
        rows = torch.randint(len(self.frames) - 1, (size,), device=device)
        return self.frames[rows], self.frames[rows + 1]


class Walkers:
    """Many robots at once, with linear dynamics and some noise."""

    def __init__(self):
        self.mixing = 0.9 * torch.eye(OBSERVED, device=device)
        self.push = 0.1 * torch.randn(ACTIONS, OBSERVED, device=device)
        self.state = torch.randn(ENVS, OBSERVED, device=device)

    def step(self, actions):
        noise = 0.3 * torch.randn_like(self.state)
        self.state = (self.state @ self.mixing + actions.clamp(-2, 2) @ self.push + noise).clamp(-5, 5)
        return self.state, -0.1 * (self.state[:, 0] - 1.0).square()


@torch.no_grad()
def roll_out(policy, discriminator, walkers, replay):
    """HORIZON steps of all robots; advantages by generalised estimation."""
    kept = {name: [] for name in ("observations", "actions", "log_probs", "values", "rewards")}
    observation = walkers.state
    for _ in range(HORIZON):
        mean = policy.actor(observation)
        action = mean + torch.exp(policy.log_std) * torch.randn_like(mean)
        following, reward = walkers.step(action)
        style = discriminator(observation[:, :MOTION], following[:, :MOTION])
        replay.insert(observation[:, :MOTION], following[:, :MOTION])
        kept["observations"].append(observation)
        kept["actions"].append(action)
        kept["log_probs"].append(policy.log_prob(observation, action))
        kept["values"].append(policy.critic(observation).squeeze(-1))
        kept["rewards"].append(reward + (1 - 0.25 * (style - 1).square()).clamp(min=0))
        observation = following
    data = {name: torch.stack(values) for name, values in kept.items()}
    following_value, gain = policy.critic(observation).squeeze(-1), 0.0
    advantages = torch.zeros_like(data["rewards"])
    for t in reversed(range(HORIZON)):
        surprise = data["rewards"][t] + GAMMA * following_value - data["values"][t]
        gain = surprise + GAMMA * LAMBDA * gain
        advantages[t], following_value = gain, data["values"][t]
    data["returns"] = advantages + data["values"]
    data["advantages"] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return {name: values.flatten(0, 1) for name, values in data.items()}


def mini_batches(data):
    size = ENVS * HORIZON // MINI_BATCHES
    for _ in range(EPOCHS):
        order = torch.randperm(ENVS * HORIZON, device=device)
        for i in range(MINI_BATCHES):
            chosen = order[i * size : (i + 1) * size]
            yield {name: values[chosen] for name, values in data.items()}


def updates(policy, discriminator, walkers, replay, clips):
    """Without end: what one update needs, of the policy and of the discriminator."""
    size = ENVS * HORIZON // MINI_BATCHES
    while True:
        data = roll_out(policy, discriminator, walkers, replay)
        for batch, own in zip(mini_batches(data), replay.batches(EPOCHS * MINI_BATCHES, size)):
            yield batch, own, clips.batch(size)


def losses(policy, discriminator, batch, own, recorded):
    ratio = torch.exp(policy.log_prob(batch["observations"], batch["actions"]) - batch["log_probs"])
    advantages = batch["advantages"]
    surrogate = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    value_loss = F.mse_loss(policy.critic(batch["observations"]).squeeze(-1), batch["returns"])
    scores_own, scores_recorded = discriminator(*own), discriminator(*recorded)
    style_loss = 0.5 * ((scores_own + 1).square().mean() + (scores_recorded - 1).square().mean())
    style_loss = style_loss + discriminator.gradient_penalty(*recorded)
    return surrogate + value_loss - 0.01 * policy.entropy() + style_loss, value_loss, style_loss


def main():
    policy, discriminator = ActorCritic().to(device), Discriminator().to(device)
    walkers, replay, clips = Walkers(), MotionReplay(REPLAY), MotionClips(2_000 if SMALL else 50_000)
    for _ in range(REPLAY // ENVS + 1):
        before = walkers.state[:, :MOTION]
        after, _ = walkers.step(torch.randn(ENVS, ACTIONS, device=device))
        replay.insert(before, after[:, :MOTION])
    parameters = list(policy.parameters()) + list(discriminator.parameters())
    optimizer = torch.optim.Adam(parameters, lr=3e-4)
    source = updates(policy, discriminator, walkers, replay, clips)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch, own, recorded = next(source)
        loss, value_loss, style_loss = losses(policy, discriminator, batch, own, recorded)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        last = style_loss.detach()
        if (step + 1) % 200 == 0:
            print(f"update {step + 1} value {value_loss.item():.4f} style {last.item():.4f}", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
