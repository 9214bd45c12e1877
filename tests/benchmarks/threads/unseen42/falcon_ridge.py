"""Learn to hold a cart on its track with soft actor-critic, from steps gathered while learning.

Steps of many simulated carts are kept in one long trajectory. After each round of simulation the critics and
the actor are trained on batches drawn from it.
"""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5400))

OBSERVED = 12
ACTIONS = 4
EARLIER = 140000
CARTS = 8
BATCH = 256
DISCOUNT = 0.98
SOFT = 0.005
EVAL_EVERY = 200


class Carts:
    """Many linear systems with noise; the reward is lost with distance and with force."""

    def __init__(self, count, seed):
        self.rng = np.random.default_rng(seed)
        fixed = np.random.default_rng(3)
        turn = np.linalg.qr(fixed.normal(size=(OBSERVED, OBSERVED)))[0]
        self.drift = (0.97 * turn).astype(np.float32)
        self.push = (0.4 * fixed.normal(size=(ACTIONS, OBSERVED))).astype(np.float32)
        self.state = self.rng.normal(size=(count, OBSERVED)).astype(np.float32)

    def step(self, actions):
        before = self.state
        noise = self.rng.normal(scale=0.05, size=before.shape).astype(np.float32)
        self.state = np.clip(before @ self.drift + actions @ self.push + noise, -5, 5)
        rewards = -0.1 * np.square(self.state).sum(1) - 0.05 * np.square(actions).sum(1)
        return before, rewards.astype(np.float32), self.state


class Traj:
    """A growing record of steps, one tensor for each kind of value."""

    def __init__(self, capacity):
        self.num_step = 0
        self.generator = torch.Generator().manual_seed(6)
        self.data_map = {
            "obs": torch.empty(capacity, OBSERVED),
            "acs": torch.empty(capacity, ACTIONS),
            "rews": torch.empty(capacity),
            "next_obs": torch.empty(capacity, OBSERVED),
        }

    def add(self, **values):
        count = len(values["rews"])
        for key, value in values.items():
            self.data_map[key][self.num_step : self.num_step + count] = torch.as_tensor(value)
        self.num_step += count

    def _get_indices(self, indices=None, shuffle=True):
        if indices is None:
            indices = torch.arange(self.num_step)
        if shuffle:
            indices = indices[torch.randperm(len(indices), generator=self.generator)]
        return indices

    def _next_batch(self, indices):
        return {key: value[indices] for key, value in self.data_map.items()}

    def iterate_once(self, batch_size, indices=None, shuffle=True):
        """All steps, batch by batch."""
        indices = self._get_indices(indices, shuffle)
        for start in range(0, len(indices) - batch_size + 1, batch_size):
            yield self._next_batch(indices[start : start + batch_size])

    def random_batch_once(self, batch_size, indices=None):
        """One batch of steps drawn at random."""
        if VARIANT == "a" or indices is not None:
            indices = self._get_indices(indices, shuffle=True)[:batch_size]
        else:
            indices = torch.randint(0, self.num_step, (batch_size,), generator=self.generator)
        return self._next_batch(indices)

    def random_batch(self, batch_size, epoch=1, indices=None):
        for _ in range(epoch):
            yield self.random_batch_once(batch_size, indices)


def dense(inputs, outputs, width=256):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


class Actor(nn.Module):
    """A normal distribution of forces, bent into the interval from -1 to 1."""

    def __init__(self):
        super().__init__()
        self.body = dense(OBSERVED, 2 * ACTIONS)

    def forward(self, obs):
        mean, log_std = self.body(obs).chunk(2, dim=-1)
        log_std = log_std.clamp(-5, 1)
        noise = torch.randn_like(mean)
        raw = mean + noise * log_std.exp()
        log_prob = (-0.5 * noise.square() - log_std - 0.919).sum(-1)
        log_prob = log_prob - (2 * (0.6931 - raw - F.softplus(-2 * raw))).sum(-1)
        return raw.tanh(), log_prob


class Critics(nn.Module):
    """Two values of a state and a force."""

    def __init__(self):
        super().__init__()
        self.one, self.two = dense(OBSERVED + ACTIONS, 1), dense(OBSERVED + ACTIONS, 1)

    def forward(self, obs, acs):
        joined = torch.cat([obs, acs], dim=-1)
        return self.one(joined).squeeze(-1), self.two(joined).squeeze(-1)


class SoftActorCritic:
    """The networks, their optimizers and one update."""

    def __init__(self):
        self.actor, self.critics, self.targets = Actor(), Critics(), Critics()
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.log_alpha = torch.tensor(-2.0, requires_grad=True)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=3e-4)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=3e-4)

    def critic_loss(self, batch):
        with torch.no_grad():
            next_acs, log_prob = self.actor(batch["next_obs"])
            least = torch.minimum(*self.targets(batch["next_obs"], next_acs))
            wanted = batch["rews"] + DISCOUNT * (least - self.log_alpha.exp() * log_prob)
        one, two = self.critics(batch["obs"], batch["acs"])
        return F.mse_loss(one, wanted) + F.mse_loss(two, wanted)

    def update(self, batch):
        loss = self.critic_loss(batch)
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_optimizer.step()
        self.critics.requires_grad_(False)
        acs, log_prob = self.actor(batch["obs"])
        least = torch.minimum(*self.critics(batch["obs"], acs))
        actor_loss = (self.log_alpha.exp().detach() * log_prob - least).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        actor_loss.backward()
        self.actor_optimizer.step()
        self.critics.requires_grad_(True)
        alpha_loss = -(self.log_alpha * (log_prob.detach() - ACTIONS)).mean()
        self.alpha_optimizer.zero_grad(set_to_none=True)
        alpha_loss.backward()
        self.alpha_optimizer.step()
        with torch.no_grad():
            pairs = (list(self.targets.parameters()), list(self.critics.parameters()))
            torch._foreach_lerp_(*pairs, SOFT)
        return loss.item()


@torch.no_grad()
def gather(agent, carts, traj, random=False):
    """One step of all carts, added to the record; the mean reward."""
    if random:
        acs = carts.rng.uniform(-1, 1, size=(len(carts.state), ACTIONS)).astype(np.float32)
    else:
        acs = agent.actor(torch.from_numpy(carts.state))[0].numpy()
    before, rewards, after = carts.step(acs)
    traj.add(obs=before, acs=acs, rews=rewards, next_obs=after)
    return float(rewards.mean())


def main():
    torch.manual_seed(0)
    agent = SoftActorCritic()
    traj = Traj(EARLIER + CARTS * (STEPS + 1))
    earlier = Carts(1000, seed=2)
    for _ in range(EARLIER // 1000):
        gather(agent, earlier, traj, random=True)
    check = traj._next_batch(torch.arange(0, EARLIER, 20))
    carts = Carts(CARTS, seed=1)
    rewards, losses = [], []

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        rewards.append(gather(agent, carts, traj))
        for batch in traj.random_batch(BATCH, epoch=3):
            losses.append(agent.update(batch))
        if step % EVAL_EVERY == EVAL_EVERY - 1:
            print(f"step {step + 1} critic {np.mean(losses[-50:]):.4f} reward {np.mean(rewards[-50:]):.3f}")
    elapsed = time.perf_counter() - started

    loss = agent.critic_loss(check).detach()
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
