"""A policy with a deep gated trunk, trained by clipped policy gradients; a book is kept of its stages."""

import contextlib
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "600"))
BATCH = int(os.environ.get("BATCH", "16384"))
WIDTH = int(os.environ.get("WIDTH", "512"))
LAYERS = int(os.environ.get("LAYERS", "16"))
OBS = int(os.environ.get("OBS", "96"))
ACTIONS = int(os.environ.get("ACTIONS", "12"))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Stage:
    book = {}

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.begin = time.time()
        return self

    def __exit__(self, *exc):
        entry = self.book.setdefault(self.name, [0, 0.0])
        entry[0] += 1
        entry[1] += time.time() - self.begin


def stage(name):
    if VARIANT != "a" and torch.compiler.is_compiling():
        return contextlib.nullcontext()
    return Stage(name)


class Fennel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 2 * width)
        self.back = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        with stage("trunk"):
            value, gate = self.into(self.norm(x)).chunk(2, -1)
            y = F.silu(gate) * torch.tanh(value)
            y = self.back(y + 0.1 * y * y)
            x = x + self.scale * F.gelu(y, approximate="tanh")
        return x


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(OBS, WIDTH)
        self.trunk = nn.ModuleList([Fennel(WIDTH) for _ in range(LAYERS)])
        self.actor = nn.Linear(WIDTH, ACTIONS)
        self.critic = nn.Linear(WIDTH, 1)

    def forward(self, obs):
        x = self.inlet(obs)
        for block in self.trunk:
            x = block(x)
        with stage("heads"):
            mean, value = torch.tanh(self.actor(x)), self.critic(x).squeeze(-1)
        return mean, value


def clipped_loss(mean, value, action, old_logp, advantage, returns):
    logp = -0.5 * ((action - mean) ** 2).sum(-1)
    ratio = (logp - old_logp).clamp(-5, 5).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -gain.mean() + 0.5 * F.mse_loss(value, returns)


torch.manual_seed(0)
policy = Policy().to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
trained = torch.compile(policy)
ROLLOUTS = 8
obs = torch.randn(ROLLOUTS, BATCH, OBS, device=device)
action = torch.randn(ROLLOUTS, BATCH, ACTIONS, device=device)
old_logp = -0.5 * (action**2).sum(-1)
advantage = torch.randn(ROLLOUTS, BATCH, device=device)
returns = torch.randn(ROLLOUTS, BATCH, device=device)

warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    i = step % ROLLOUTS
    with torch.autocast(device, dtype=torch.bfloat16):
        mean, value = trained(obs[i])
    loss = clipped_loss(mean.float(), value.float(), action[i], old_logp[i], advantage[i], returns[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.3f} ms per step")
