"""Reaching for goals with DDPG; goals are relabelled in hindsight."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
HORIZON, OBSERVED, GOAL, ACTION, BATCH = 50, 25, 3, 4, 256


class ReplayBuffer:
    def __init__(self, size):
        self.size, self.current_size = size, 0
        self.buffers = {
            "obs": np.empty((size, HORIZON + 1, OBSERVED)),
            "ag": np.empty((size, HORIZON + 1, GOAL)),
            "g": np.empty((size, HORIZON, GOAL)),
            "actions": np.empty((size, HORIZON, ACTION)),
        }

    def store(self, episodes):
        count = len(episodes["obs"])
        for key, values in episodes.items():
            self.buffers[key][self.current_size : self.current_size + count] = values
        self.current_size += count

    def sample(self, batch_size):
        temp = {}
        for key in self.buffers:
            if VARIANT == "a":
                temp[key] = self.buffers[key][: self.current_size].copy()
            else:
                temp[key] = self.buffers[key][: self.current_size]
        temp["obs_next"] = temp["obs"][:, 1:]
        temp["ag_next"] = temp["ag"][:, 1:]
        return relabel(temp, batch_size)


def relabel(episodes, batch_size, future=0.8):
    which = np.random.randint(0, len(episodes["actions"]), batch_size)
    when = np.random.randint(HORIZON, size=batch_size)
    transitions = {key: values[which, when].copy() for key, values in episodes.items()}
    later = np.where(np.random.uniform(size=batch_size) < future)[0]
    offset = (np.random.uniform(size=batch_size) * (HORIZON - when)).astype(int)
    transitions["g"][later] = episodes["ag"][which[later], (when + 1 + offset)[later]]
    apart = np.linalg.norm(transitions["ag_next"] - transitions["g"], axis=-1)
    transitions["r"] = -(apart > 0.05).astype(np.float32)[:, None]
    return transitions


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs),
    )  # fmt: skip


def episodes(count):
    rng = np.random.default_rng(count)
    return {
        "obs": rng.standard_normal((count, HORIZON + 1, OBSERVED)),
        "ag": rng.standard_normal((count, HORIZON + 1, GOAL)),
        "g": rng.standard_normal((count, HORIZON, GOAL)),
        "actions": rng.uniform(-1, 1, (count, HORIZON, ACTION)),
    }


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    buffer = ReplayBuffer(8000)
    buffer.store(episodes(5000))
    actor, critic = mlp(OBSERVED + GOAL, ACTION), mlp(OBSERVED + GOAL + ACTION, 1)
    actor_target, critic_target = mlp(OBSERVED + GOAL, ACTION), mlp(OBSERVED + GOAL + ACTION, 1)
    actor_target.load_state_dict(actor.state_dict())
    critic_target.load_state_dict(critic.state_dict())
    actor_optim = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_optim = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        transitions = buffer.sample(BATCH)
        inputs = np.concatenate([transitions["obs"].clip(-5, 5), transitions["g"].clip(-5, 5)], axis=1)
        after = np.concatenate([transitions["obs_next"].clip(-5, 5), transitions["g"].clip(-5, 5)], axis=1)
        inputs = torch.tensor(inputs, dtype=torch.float32)
        after = torch.tensor(after, dtype=torch.float32)
        actions = torch.tensor(transitions["actions"], dtype=torch.float32)
        reward = torch.tensor(transitions["r"], dtype=torch.float32)
        with torch.no_grad():
            ahead = critic_target(torch.cat([after, actor_target(after).tanh()], 1))
            target = (reward + 0.98 * ahead).clamp(-50, 0)
        critic_loss = (target - critic(torch.cat([inputs, actions], 1))).square().mean()
        chosen = actor(inputs).tanh()
        actor_loss = -critic(torch.cat([inputs, chosen], 1)).mean() + chosen.square().mean()
        actor_optim.zero_grad()
        actor_loss.backward()
        actor_optim.step()
        critic_optim.zero_grad()
        critic_loss.backward()
        critic_optim.step()
        if step % 40 == 39:
            for target_net, net in ((actor_target, actor), (critic_target, critic)):
                for kept, p in zip(target_net.parameters(), net.parameters(), strict=True):
                    kept.data.lerp_(p.data, 0.05)
            buffer.store(episodes(2))
    print(f"critic loss {critic_loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
