"""Q-learning from a memory of what an agent saw."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
SEEN, ACTIONS, BATCH, SIZE = 128, 6, 512, 20_000


class Memory:
    def __init__(self):
        rng = np.random.default_rng(0)
        self.rng = rng
        self.data = {
            "states": rng.standard_normal((SIZE, SEEN)),
            "next_states": rng.standard_normal((SIZE, SEEN)),
            "actions": rng.integers(0, ACTIONS, SIZE).astype(np.float64),
            "rewards": rng.standard_normal(SIZE),
            "dones": (rng.random(SIZE) < 0.05).astype(np.float64),
        }

    def sample(self):
        rows = self.rng.integers(0, SIZE, BATCH)
        return {key: values[rows] for key, values in self.data.items()}


def to_torch_batch(batch):
    if VARIANT == "a":
        return {key: torch.from_numpy(values).float() for key, values in batch.items()}
    return {key: torch.from_numpy(values.astype(np.float32)) for key, values in batch.items()}


def mlp():
    return nn.Sequential(
        nn.Linear(SEEN, 512), nn.SELU(), nn.Linear(512, 512), nn.SELU(), nn.Linear(512, ACTIONS)
    )


def main():
    torch.manual_seed(0)
    memory, net, target_net = Memory(), mlp(), mlp()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        batch = to_torch_batch(memory.sample())
        with torch.no_grad():
            picked = net(batch["next_states"]).argmax(1, keepdim=True)
            ahead = target_net(batch["next_states"]).gather(1, picked).squeeze(1)
            wanted = batch["rewards"] + 0.99 * (1 - batch["dones"]) * ahead
        values = net(batch["states"]).gather(1, batch["actions"].long()[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        if step % 50 == 49:
            target_net.load_state_dict(net.state_dict())
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
