"""Train a walking figure to follow reference motions with proximal policy optimisation."""

import gc
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6400))

WALKERS = 256
HORIZON = 16
JOINTS = 12
PHASES = 2
OBSERVED = 3 * JOINTS + 2 * PHASES
EPOCHS = 4
MINIBATCHES = 4


class MotionLibrary:
    """Reference clips: periodic joint angles of different gaits."""

    def __init__(self, clips=24, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.amplitude = 0.5 * torch.rand(clips, JOINTS, generator=generator)
        self.shift = 2 * math.pi * torch.rand(clips, JOINTS, generator=generator)
        self.speed = 0.15 + 0.2 * torch.rand(clips, generator=generator)

    def pose(self, clip, clock):
        angle = (self.speed[clip] * clock).unsqueeze(1) + self.shift[clip]
        return self.amplitude[clip] * torch.sin(angle)


class WalkerEnvs:
    """Many damped joint chains, stepped together."""

    def __init__(self, library, count=WALKERS):
        self.library = library
        self.count = count
        self.angle = torch.zeros(count, JOINTS)
        self.velocity = torch.zeros(count, JOINTS)
        self.clip = torch.randint(0, len(library.speed), (count,))
        self.clock = torch.zeros(count)

    def observe(self):
        target = self.library.pose(self.clip, self.clock + 1)
        phase = (self.library.speed[self.clip] * self.clock).unsqueeze(1) * torch.arange(1.0, PHASES + 1)
        return torch.cat([self.angle, self.velocity, target, phase.sin(), phase.cos()], dim=1)

    def step(self, action):
        self.velocity = 0.8 * self.velocity + 0.3 * action.clamp(-2, 2) - 0.1 * self.angle
        self.angle = self.angle + 0.3 * self.velocity
        self.clock = self.clock + 1
        error = (self.angle - self.library.pose(self.clip, self.clock)).pow(2).mean(dim=1)
        reward = torch.exp(-4.0 * error) - 0.005 * action.pow(2).mean(dim=1)
        done = (error > 1.5) | (self.clock >= 120)
        keep = (~done).float().unsqueeze(1)
        self.angle, self.velocity = self.angle * keep, self.velocity * keep
        self.clock = self.clock * keep.squeeze(1)
        return reward, done.float(), error


def mlp(sizes):
    """Linear layers with ELU between them."""
    layers = []
    for inner, outer in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(inner, outer), nn.ELU()]
    return nn.Sequential(*layers[:-1])


class ActorCritic(nn.Module):
    """Gaussian policy and value function."""

    def __init__(self, width=256):
        super().__init__()
        self.actor = mlp([OBSERVED, width, width, JOINTS])
        self.critic = mlp([OBSERVED, width, width, 1])
        self.log_std = nn.Parameter(torch.full((JOINTS,), -0.7))

    def log_prob(self, mean, action):
        spread = (action - mean) / self.log_std.exp()
        return -(0.5 * spread.pow(2) + self.log_std + 0.5 * math.log(2 * math.pi)).sum(dim=1)

    def forward(self, observation):
        return self.actor(observation), self.critic(observation).squeeze(1)


class TrainerState:
    """What the trainer remembers: rows of the log, and running figures per motion."""

    def __init__(self, clips):
        self.log_history = []
        self.failures = {clip: {"episodes": 0.0, "failed": 0.0} for clip in range(clips)}

    def record(self, step, rows, done, clip):
        for number, ended in zip(clip.tolist(), done.tolist()):
            self.failures[number]["episodes"] += ended
        self.log_history.append({"step": step, **rows})


class PPOTrainer:
    """Collects rollouts and updates the policy on them."""

    def __init__(self, envs, model, gamma=0.97, lam=0.95, clip=0.2):
        self.envs, self.model = envs, model
        self.gamma, self.lam, self.clip = gamma, lam, clip
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-4)
        self.state = TrainerState(len(envs.library.speed))

    @torch.no_grad()
    def rollout(self):
        rows = {name: [] for name in ("obs", "act", "logp", "value", "reward", "done", "error")}
        for _ in range(HORIZON):
            observation = self.envs.observe()
            mean, value = self.model(observation)
            action = mean + self.model.log_std.exp() * torch.randn_like(mean)
            logp = self.model.log_prob(mean, action)
            reward, done, error = self.envs.step(action)
            for name, part in zip(rows, (observation, action, logp, value, reward, done, error)):
                rows[name].append(part)
        batch = {name: torch.stack(parts) for name, parts in rows.items()}
        following = self.model(self.envs.observe())[1]
        advantage, carried = torch.zeros_like(batch["reward"]), torch.zeros(self.envs.count)
        for t in reversed(range(HORIZON)):
            alive = 1.0 - batch["done"][t]
            delta = batch["reward"][t] + self.gamma * alive * following - batch["value"][t]
            carried = delta + self.gamma * self.lam * alive * carried
            advantage[t], following = carried, batch["value"][t]
        batch["returns"] = advantage + batch["value"]
        batch["advantage"] = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        return batch

    def update(self, batch):
        flat = {name: part.flatten(0, 1) for name, part in batch.items()}
        for _ in range(EPOCHS):
            for chosen in torch.randperm(HORIZON * WALKERS).chunk(MINIBATCHES):
                mean, value = self.model(flat["obs"][chosen])
                ratio = torch.exp(self.model.log_prob(mean, flat["act"][chosen]) - flat["logp"][chosen])
                gain = flat["advantage"][chosen]
                surrogate = torch.min(ratio * gain, ratio.clamp(1 - self.clip, 1 + self.clip) * gain)
                loss = F.mse_loss(value, flat["returns"][chosen]) - surrogate.mean()
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                yield loss

    def train(self):
        """Iterations without end; hands out the loss of each update."""
        iteration = 0
        while True:
            batch = self.rollout()
            for loss in self.update(batch):
                yield loss
            rows = {
                name: batch[name].mean().item() for name in ("reward", "error", "value", "done", "returns")
            }
            self.state.record(iteration, {"loss": loss.item(), **rows}, batch["done"][-1], self.envs.clip)
            iteration += 1
            if VARIANT == "a":
                del batch
                gc.collect()


def main():
    torch.manual_seed(0)
    trainer = PPOTrainer(WalkerEnvs(MotionLibrary()), ActorCritic())
    updates = trainer.train()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        loss = next(updates)
        if step % 800 == 799:
            last = trainer.state.log_history[-1]
            print(f"update {step + 1} reward {last['reward']:.4f} error {last['error']:.4f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
