"""Off-policy control with many critics: a randomized subset of ten gives the value of the next state."""

import os
import time
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6500))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

STATE, ACTION = 48, 12
WIDTH = 32 if SMALL else 256
BLOCKS = 1 if SMALL else 4
CRITICS = 3 if SMALL else 10
SUBSET = 2
BATCH = 16 if SMALL else 256
CAPACITY = 500 if SMALL else 200_000
ENVS = 4 if SMALL else 64
POLICY_DELAY = 20
GAMMA, TAU, ALPHA = 0.99, 0.005, 0.1
LOG_EVERY = 250
EVAL_EVERY = 1500


class Block(nn.Module):
    """A residual block of two layers, normalised."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_first, self.norm_second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        h = F.relu(self.norm_first(self.first(x)))
        return x + self.norm_second(self.second(h))


class Trunk(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Linear(inputs, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.ReLU(),
            *[Block(WIDTH) for _ in range(BLOCKS)],
            nn.Linear(WIDTH, outputs),
        )


class Policy(nn.Module):
    """A squashed normal distribution of actions."""

    def __init__(self):
        super().__init__()
        self.trunk = Trunk(STATE, 2 * ACTION)

    def forward(self, state):
        mean, log_std = self.trunk(state).chunk(2, dim=-1)
        log_std = log_std.clamp(-5, 2)
        noise = torch.randn_like(mean)
        raw = mean + noise * log_std.exp()
        action = torch.tanh(raw)
        log_prob = (-0.5 * noise.square() - log_std - 0.9189385).sum(-1)
        return action, log_prob - torch.log(1 - action.square() + 1e-6).sum(-1)


class Ensemble(nn.Module):
    """The critics, each with weights of its own."""

    def __init__(self):
        super().__init__()
        self.critics = nn.ModuleList(Trunk(STATE + ACTION, 1) for _ in range(CRITICS))

    def forward(self, state, action, members=None):
        x = torch.cat([state, action], dim=-1)
        chosen = self.critics if members is None else [self.critics[i] for i in members]
        return torch.stack([critic(x).squeeze(-1) for critic in chosen])


class SoftUpdate:
    """Lets the weights of the target networks follow those that are trained."""

    def __init__(self, source, target, eps):
        self.sources = OrderedDict(source.named_parameters())
        self.targets = OrderedDict(target.named_parameters())
        self.eps = eps
        self.initialized = False

    def init_(self):
        for name, p_source in self.sources.items():
            self.targets[name].data.copy_(p_source.data)
        self.initialized = True

    def _step(self, p_source, p_target):
        p_target.data.copy_(p_target.data * self.eps + p_source.data * (1 - self.eps))

    @torch.no_grad()
    def step(self):
        if not self.initialized:
            raise RuntimeError("call init_() first")
        if VARIANT == "a":
            for name, p_source in self.sources.items():
                p_target = self.targets[name]
                if p_target.requires_grad:
                    raise RuntimeError("the target is part of a graph")
                self._step(p_source, p_target)
        else:
            sources = [p.data for p in self.sources.values()]
            targets = [p.data for p in self.targets.values()]
            torch._foreach_mul_(targets, self.eps)
            torch._foreach_add_(targets, sources, alpha=1 - self.eps)


class Replay:
    """Transitions on the device, in one tensor for each field."""

    def __init__(self):
        self.state = torch.zeros(CAPACITY, STATE, device=device)
        self.action = torch.zeros(CAPACITY, ACTION, device=device)
        self.reward = torch.zeros(CAPACITY, device=device)
        self.following = torch.zeros(CAPACITY, STATE, device=device)
        self.at, self.size = 0, 0

    def extend(self, state, action, reward, following):
        n = len(state)
        if self.at + n > CAPACITY:
            self.at = 0
        rows = slice(self.at, self.at + n)
        self.state[rows], self.action[rows] = state, action
        self.reward[rows], self.following[rows] = reward, following
        self.at += n
        self.size = max(self.size, self.at)

    def sample(self):
        rows = torch.randint(self.size, (BATCH,), device=device)
        return self.state[rows], self.action[rows], self.reward[rows], self.following[rows]


class Worlds:
    """Linear dynamics with a quadratic cost, many at a time."""

    def __init__(self):
        gen = torch.Generator().manual_seed(3)
        self.a = (0.9 * torch.eye(STATE) + 0.02 * torch.randn(STATE, STATE, generator=gen)).to(device)
        self.b = (0.2 * torch.randn(ACTION, STATE, generator=gen)).to(device)
        self.state = torch.randn(ENVS, STATE, generator=gen).to(device)

    @torch.no_grad()
    def step(self, policy):
        action, _ = policy(self.state)
        following = (self.state @ self.a + action @ self.b).clamp(-5, 5)
        reward = -following.square().mean(-1) - 0.01 * action.square().sum(-1)
        out = (self.state, action, reward, following)
        self.state = following
        return out


def main():
    torch.manual_seed(0)
    policy, critics, targets = Policy().to(device), Ensemble().to(device), Ensemble().to(device)
    targets.requires_grad_(False)
    updater = SoftUpdate(critics, targets, eps=1 - TAU)
    updater.init_()
    fused = device == "cuda"
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4, fused=fused)
    policy_optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=fused)
    worlds, replay = Worlds(), Replay()
    for _ in range(20):
        replay.extend(*worlds.step(policy))
    picks = torch.Generator().manual_seed(5)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        if step % POLICY_DELAY == 0:
            replay.extend(*worlds.step(policy))
        state, action, reward, following = replay.sample()
        with torch.no_grad():
            members = torch.randperm(CRITICS, generator=picks)[:SUBSET].tolist()
            next_action, next_log_prob = policy(following)
            value = targets(following, next_action, members).amin(0) - ALPHA * next_log_prob
            goal = reward + GAMMA * value
        loss = (critics(state, action) - goal).square().mean(-1).sum()
        critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        critic_optimizer.step()
        updater.step()
        if (step + 1) % POLICY_DELAY == 0:
            new_action, log_prob = policy(state)
            policy_loss = (ALPHA * log_prob - critics(state, new_action).mean(0)).mean()
            policy_optimizer.zero_grad(set_to_none=True)
            policy_loss.backward()
            policy_optimizer.step()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1} critic loss {loss.item():.4f} replay {replay.size}")
        if (step + 1) % EVAL_EVERY == 0:
            print(f"step {step + 1} reward {worlds.step(policy)[2].mean().item():.4f}")
        last = loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
