"""PPO for a crowd of walkers: collect readings from all of them, then a few passes of updates."""

import os
import time

import numpy as np
import torch
import torch.nn as nn

from heron_walkers import FIELDS, Walker

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 3 if SMALL else 800))
WARMUP = 1 if SMALL else 5

device = "cuda" if torch.cuda.is_available() else "cpu"
CROWD = 4 if SMALL else 48
HORIZON = 4 if SMALL else 16
PASSES = 1 if SMALL else 4
PARTS = 2 if SMALL else 4
WIDTH = 32 if SMALL else 256
ACTIONS = 17
OBSERVED = FIELDS["joints"] + FIELDS["speeds"] + FIELDS["feet"] + FIELDS["goal"]


class Crowd:
    """Steps every walker and joins what they report into batches on the device."""

    def __init__(self):
        self.walkers = [Walker(seed) for seed in range(CROWD)]

    def step(self, actions):
        if VARIANT == "a":
            reports = [self.to_tensors(w.step(a)) for w, a in zip(self.walkers, actions)]
            return {key: torch.stack([r[key] for r in reports]) for key in FIELDS}
        reports = [w.step(a) for w, a in zip(self.walkers, actions)]
        joined = {key: np.stack([r[key] for r in reports]) for key in FIELDS}
        return self.to_tensors(joined)

    def to_tensors(self, report):
        return {key: torch.as_tensor(report[key]).to(device) for key in FIELDS}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBSERVED, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.mean = nn.Linear(WIDTH, ACTIONS)
        self.value = nn.Linear(WIDTH, 1)
        self.log_std = nn.Parameter(torch.full((ACTIONS,), -0.5))

    def forward(self, obs):
        h = self.body(obs)
        return self.mean(h), self.value(h).squeeze(-1)

    def log_prob(self, mean, action):
        z = (action - mean) * torch.exp(-self.log_std)
        return (-0.5 * z * z - self.log_std).sum(-1)


def observed(batch):
    return torch.cat([batch["joints"], batch["speeds"], batch["feet"], batch["goal"]], -1)


@torch.no_grad()
def collect(agent, crowd, obs):
    rows = {key: [] for key in ("obs", "action", "logp", "value", "reward", "done")}
    for _ in range(HORIZON):
        mean, value = agent(obs)
        action = mean + torch.exp(agent.log_std) * torch.randn_like(mean)
        rows["obs"].append(obs)
        rows["action"].append(action)
        rows["logp"].append(agent.log_prob(mean, action))
        rows["value"].append(value)
        batch = crowd.step(action.cpu().numpy())
        obs = observed(batch)
        rows["reward"].append(batch["reward"].squeeze(-1))
        rows["done"].append(batch["done"].squeeze(-1))
    rows = {key: torch.stack(parts) for key, parts in rows.items()}
    advantage, ahead = torch.zeros_like(rows["value"]), agent(obs)[1]
    running = torch.zeros_like(ahead)
    for t in reversed(range(HORIZON)):
        alive = 1.0 - rows["done"][t]
        delta = rows["reward"][t] + 0.99 * alive * ahead - rows["value"][t]
        running = delta + 0.99 * 0.95 * alive * running
        advantage[t], ahead = running, rows["value"][t]
    rows["advantage"], rows["target"] = advantage, advantage + rows["value"]
    return {key: x.flatten(0, 1) for key, x in rows.items()}, obs


def update(agent, optimizer, rows):
    size = rows["obs"].shape[0]
    for _ in range(PASSES):
        for part in torch.randperm(size, device=device).chunk(PARTS):
            mean, value = agent(rows["obs"][part])
            ratio = torch.exp(agent.log_prob(mean, rows["action"][part]) - rows["logp"][part])
            adv = rows["advantage"][part]
            adv = (adv - adv.mean()) / (adv.std() + 1e-6)
            policy = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            loss = policy + 0.05 * (value - rows["target"][part]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    return loss.detach()


def clock():
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    torch.manual_seed(0)
    agent = Agent().to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-4, fused=device == "cuda")
    crowd = Crowd()
    obs = observed(crowd.step(np.zeros((CROWD, ACTIONS), np.float32)))
    for step in range(STEPS):
        if step == WARMUP:
            begin = clock()
        rows, obs = collect(agent, crowd, obs)
        loss = update(agent, optimizer, rows)
    took = clock() - begin
    print(f"loss {loss.item():.4f}")
    print(f"{took * 1000 / (STEPS - WARMUP):.2f} ms per step")


if __name__ == "__main__":
    main()
