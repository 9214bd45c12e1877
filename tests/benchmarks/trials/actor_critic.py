"""Actor critic: 64 environment steps in numpy, action sampled on the GPU and read back each time, then one update.

Planted: host-bound (the line is marked). --fixed: the same training without it.
"""

import os
import sys
import time
import numpy as np, torch
from torch import nn

TRUTH = "host-bound"
ACCEPT = ("sync-bound", "launch-bound", "input-bound")
NEEDS_GPU = True
FIXED = "--fixed" in sys.argv
dev = "cuda"


class AC(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.pi = nn.Linear(128, 4)
        self.v = nn.Linear(128, 1)

    def forward(self, o):
        h = self.body(o)
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


ac = AC().to(dev)
actor = AC() if FIXED else ac
opt = torch.optim.Adam(ac.parameters(), 3e-4)
rng = np.random.default_rng(0)
state = rng.standard_normal(8).astype(np.float32)
N = 80
for it in range(N):
    if it == 15:
        torch.cuda.synchronize()
        t0 = time.perf_counter()
    if FIXED:
        actor.load_state_dict(ac.state_dict())
    obs, acts, rews = [], [], []
    for t in range(64):
        with torch.no_grad():
            dist, v = actor(torch.as_tensor(state, device="cpu" if FIXED else dev))
            a = dist.sample().item()  # planted
        obs.append(state)
        acts.append(a)
        state = np.tanh(state + 0.1 * rng.standard_normal(8).astype(np.float32) + 0.05 * (a - 1.5)).astype(
            np.float32
        )
        rews.append(float(-np.abs(state).sum()))
    ret = np.cumsum(rews[::-1])[::-1].copy()
    dist, v = ac(torch.as_tensor(np.array(obs), device=dev))
    adv = torch.as_tensor(ret, dtype=torch.float32, device=dev) - v
    loss = (
        -(dist.log_prob(torch.as_tensor(acts, device=dev)) * adv.detach()).mean()
        + adv.pow(2).mean()
        - 0.01 * dist.entropy().mean()
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 15):.3f}")
