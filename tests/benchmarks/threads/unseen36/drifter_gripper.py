"""TD3 on a set of point-mass grippers, with experiences kept on the host."""

import copy
import os
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1400"))
GRIPPERS = int(os.environ.get("GRIPPERS", "16"))
PRELOAD = int(os.environ.get("PRELOAD", "40000"))
BATCH = int(os.environ.get("BATCH", "256"))
OBS, ACT, UPDATES, CAPACITY = 24, 6, 2, 1_000_000

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class GripperMemory:
    def __init__(self):
        self.head, self.size, self.buffers = 0, 0, {}
        self.priorities = deque(maxlen=CAPACITY)

    def _store(self, **experience):
        for key, value in experience.items():
            if key not in self.buffers:
                self.buffers[key] = [None] * CAPACITY
            self.buffers[key][self.head] = value
        self.head = (self.head + 1) % CAPACITY
        self.size = min(self.size + 1, CAPACITY)

    def preload(self, experiences):
        for experience in experiences:
            self._store(**experience)
            self.priorities.append(1.0)

    def add(self, **experience):
        self._store(**experience)
        max_priority = max(self.priorities) if self.priorities else 1.0
        self.priorities.append(max_priority)

    def sample(self, rng, batch_size):
        rows = rng.integers(0, self.size, size=batch_size)
        return {k: np.stack([column[i] for i in rows]) for k, column in self.buffers.items()}


class PlainMemory(GripperMemory):
    def add(self, **experience):
        self._store(**experience)


def mlp(n_in, n_out):
    return nn.Sequential(
        nn.Linear(n_in, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, n_out)
    )


class TD3:
    def __init__(self):
        self.actor = mlp(OBS, ACT).to(device)
        self.critics = nn.ModuleList([mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)]).to(device)
        self.nets = nn.ModuleList([self.actor, self.critics])
        self.actor_t, self.critics_t = self.nets_t = copy.deepcopy(self.nets).requires_grad_(False)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_opt, self.count = torch.optim.Adam(self.critics.parameters(), lr=3e-4), 0

    def act(self, state):
        with torch.no_grad():
            return torch.tanh(self.actor(torch.from_numpy(state).to(device))).cpu().numpy()

    def update(self, batch):
        self.count += 1
        b = {k: torch.from_numpy(v).to(device) for k, v in batch.items()}
        with torch.no_grad():
            sa = torch.cat([b["next_state"], torch.tanh(self.actor_t(b["next_state"]))], 1)
            target = b["reward"].unsqueeze(1) + 0.99 * torch.min(self.critics_t[0](sa), self.critics_t[1](sa))
        sa = torch.cat([b["state"], b["action"]], 1)
        loss = F.mse_loss(self.critics[0](sa), target) + F.mse_loss(self.critics[1](sa), target)
        self.critic_opt.zero_grad()
        loss.backward()
        self.critic_opt.step()
        if self.count % 2 == 0:
            self.actor_opt.zero_grad()
            sa = torch.cat([b["state"], torch.tanh(self.actor(b["state"]))], 1)
            (-self.critics[0](sa).mean()).backward()
            self.actor_opt.step()
            weights = [p.detach() for p in self.nets.parameters()]
            torch._foreach_lerp_(list(self.nets_t.parameters()), weights, 0.005)
        return loss.detach()


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    agent = TD3()
    state = rng.standard_normal((GRIPPERS, OBS), dtype=np.float32)
    mix = 0.1 * rng.standard_normal((ACT, OBS), dtype=np.float32)
    memory = GripperMemory() if VARIANT == "a" else PlainMemory()
    old = rng.standard_normal((PRELOAD, 2 * OBS + ACT), dtype=np.float32)
    memory.preload(
        dict(
            state=row[:OBS],
            action=row[-ACT:],
            reward=-np.square(row[OBS : OBS + 3]).sum(),
            next_state=row[OBS : 2 * OBS],
        )
        for row in old
    )
    warm, cuda = min(10, STEPS // 2), device.type == "cuda"
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        noise = 0.1 * rng.standard_normal((GRIPPERS, ACT), dtype=np.float32)
        action = np.clip(agent.act(state) + noise, -1, 1)
        nxt = 0.95 * state + action @ mix
        reward = -np.square(nxt[:, :3]).sum(1)
        for s, a, r, n in zip(state, action, reward, nxt):
            memory.add(state=s, action=a, reward=r, next_state=n)
        state = nxt
        for _ in range(UPDATES):
            loss = agent.update(memory.sample(rng, BATCH))
    if cuda:
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
