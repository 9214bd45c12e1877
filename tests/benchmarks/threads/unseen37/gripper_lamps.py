"""A gripper with two joints learns to point at lamps on a table: rollouts in a simulator, then an update."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1000"))
WARM = min(10, STEPS // 2)
HORIZON = 32
LAMPS = 5
PICTURE = 36
STATE = 6 + 2 * LAMPS
WIDTH = 192
GAMMA = 0.97


class TableSim:
    """Joints, lamps and two cameras above the table."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        axis = np.linspace(-1, 1, PICTURE, dtype=np.float32)
        self.grid = np.stack(np.meshgrid(axis, axis), -1)
        self.cameras = {"top": np.float32([0.0, 0.0]), "side": np.float32([0.3, -0.2])}

    def reset(self):
        self.joints = self.rng.normal(0, 0.5, 2).astype(np.float32)
        self.speed = np.zeros(2, np.float32)
        self.lamps = self.rng.uniform(-0.8, 0.8, (LAMPS, 2)).astype(np.float32)

    def tip(self):
        first, second = self.joints[0], self.joints.sum()
        return 0.5 * np.float32([np.cos(first) + np.cos(second), np.sin(first) + np.sin(second)])

    def render(self, camera):
        picture = np.zeros((PICTURE, PICTURE), np.float32)
        for point in np.concatenate([self.lamps, self.tip()[None]]) + self.cameras[camera]:
            picture += np.exp(-((self.grid - point) ** 2).sum(-1) / 0.01)
        return (255 * np.clip(picture, 0, 1)).astype(np.uint8)

    def advance(self, torque):
        for _ in range(4):
            self.speed = 0.9 * self.speed + 0.05 * np.clip(torque, -1, 1)
            self.joints = self.joints + 0.1 * self.speed

    def get_observation(self, skip_images=False):
        tip = self.tip()
        state = np.concatenate([self.joints, self.speed, tip, (self.lamps - tip).ravel()])
        observation = {"observation.state": state.astype(np.float32)}
        if not skip_images:
            for camera in self.cameras:
                observation["observation.images." + camera] = self.render(camera)
        return observation


class StatePolicy(nn.Module):
    requires_images = False

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.mean = nn.Linear(WIDTH, 2)
        self.value = nn.Linear(WIDTH, 1)

    def forward(self, state):
        hidden = self.body(state)
        return self.mean(hidden), self.value(hidden).squeeze(-1)

    def act(self, observation, generator):
        with torch.no_grad():
            mean, _ = self(torch.from_numpy(observation["observation.state"]))
        return mean + 0.3 * torch.randn(2, generator=generator)


class PolicyRunner:
    def __init__(self, sim, policy):
        self.sim, self.policy = sim, policy
        self.generator = torch.Generator().manual_seed(7)
        self.skip_images = VARIANT != "a" and not policy.requires_images

    def run(self):
        states, actions, rewards = [], [], []
        self.sim.reset()
        for _ in range(HORIZON):
            observation = self.sim.get_observation(skip_images=self.skip_images)
            action = self.policy.act(observation, self.generator)
            self.sim.advance(action.numpy())
            states.append(observation["observation.state"])
            actions.append(action)
            rewards.append(-float(np.abs(self.sim.lamps - self.sim.tip()).sum(1).min()))
        return torch.from_numpy(np.stack(states)), torch.stack(actions), rewards


def update(policy, optimizer, states, actions, rewards):
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + GAMMA * total
        returns.append(total)
    returns = torch.tensor(returns[::-1]) / 10
    for _ in range(4):
        mean, value = policy(states)
        gain = (returns - value).detach()
        log_prob = -((actions - mean) ** 2).sum(1) / (2 * 0.3**2)
        loss = -(gain * log_prob).mean() + (returns - value).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def main():
    torch.manual_seed(0)
    policy = StatePolicy()
    runner = PolicyRunner(TableSim(seed=1), policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        loss = update(policy, optimizer, *runner.run())
    spent = (time.perf_counter() - start) / (STEPS - WARM)
    print(f"loss {loss.item():.5f}")
    print(f"{spent * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
