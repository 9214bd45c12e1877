"""PPO on stacked Atari frames: each rollout is passed over several times in minibatches."""

import os
import random
import time

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3000))
ROLLOUT = int(os.environ.get("ROLLOUT", 5000))
MINIBATCH = int(os.environ.get("MINIBATCH", 1000))
PASSES, ACTIONS = 10, 4
device = torch.device(os.environ.get("DEVICE", "cuda"))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(),
        )  # fmt: skip
        self.policy, self.value = nn.Linear(512, ACTIONS), nn.Linear(512, 1)

    def forward(self, frames):
        x = self.body(frames.float() / 255)
        return self.policy(x), self.value(x).squeeze(-1)


def collect(generator):
    """What the environments brought: one sample batch on the host."""
    return {
        "obs": torch.randint(0, 256, (ROLLOUT, 4, 84, 84), dtype=torch.uint8, generator=generator),
        "actions": torch.randint(0, ACTIONS, (ROLLOUT,), generator=generator),
        "logp": torch.full((ROLLOUT,), -1.386),
        "advantages": torch.randn(ROLLOUT, generator=generator),
        "returns": torch.randn(ROLLOUT, generator=generator),
        "values": torch.randn(ROLLOUT, generator=generator),
    }


def to_device(batch):
    return {name: column.to(device) for name, column in batch.items()}


def minibatches(samples, rng):
    starts = list(range(0, ROLLOUT, MINIBATCH))
    rng.shuffle(starts)
    for start in starts:
        yield {name: column[start : start + MINIBATCH] for name, column in samples.items()}


def ppo_loss(model, batch):
    logits, value = model(batch["obs"])
    chosen = Categorical(logits=logits, validate_args=False)
    ratio = (chosen.log_prob(batch["actions"]) - batch["logp"]).exp()
    advantage = batch["advantages"]
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)
    clipped = batch["values"] + (value - batch["values"]).clamp(-10, 10)
    error = torch.max((value - batch["returns"]) ** 2, (clipped - batch["returns"]) ** 2)
    return (-surrogate + 0.5 * error - 0.01 * chosen.entropy()).mean()


def learn(rollouts, rng):
    """Minibatches without end: every rollout PASSES times, then the next one."""
    while True:
        for samples in rollouts:
            if VARIANT == "b":
                samples = to_device(samples)
            for _ in range(PASSES):
                for batch in minibatches(samples, rng):
                    yield batch if VARIANT == "b" else to_device(batch)


def main():
    torch.manual_seed(0)
    model = ActorCritic().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5, fused=device.type == "cuda")
    generator = torch.Generator().manual_seed(1)
    rollouts = [collect(generator) for _ in range(3)]
    batches = learn(rollouts, random.Random(5))
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = next(batches)
        loss = ppo_loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
