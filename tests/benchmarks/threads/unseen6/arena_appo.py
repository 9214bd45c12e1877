"""The learner of an asynchronous PPO: pixels and a recurrent policy, rollouts of 32 frames."""

import os
import time

import torch
from rollout_episodes import episodes_of
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3000))
ROLLOUTS = int(os.environ.get("ROLLOUTS", 64))
RECURRENCE, ACTIONS, HIDDEN = 32, 12, 512
HEIGHT, WIDTH = 72, 128
device = torch.device(os.environ.get("DEVICE", "cuda"))


class PixelPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, 32, 8, 4), nn.ELU(),
            nn.Conv2d(32, 64, 4, 2), nn.ELU(),
            nn.Conv2d(64, 128, 3, 2), nn.ELU(),
        )  # fmt: skip
        self.project = nn.Linear(128 * 3 * 6, HIDDEN)
        self.core = nn.GRUCell(HIDDEN, HIDDEN) if VARIANT == "a" else nn.GRU(HIDDEN, HIDDEN)
        self.policy, self.value = nn.Linear(HIDDEN, ACTIONS), nn.Linear(HIDDEN, 1)

    def head(self, frames):
        x = self.conv(frames.flatten(0, 1).float() / 255)
        return F.elu(self.project(x.flatten(1))).unflatten(0, frames.shape[:2])

    def recurrent(self, features, state, episodes, dones):
        if VARIANT == "b":
            return self.recurrent_episodes(features, state, episodes)
        outputs = []
        for t in range(RECURRENCE):
            state = self.core(features[t], state)
            outputs.append(state)
            state = state * (1 - dones[t])[:, None]
        return torch.stack(outputs)

    def recurrent_episodes(self, features, state, episodes):
        flat = features.flatten(0, 1)
        parts = pack_padded_sequence(flat[episodes["rows"]], episodes["lengths"], enforce_sorted=False)
        first = torch.where(episodes["fresh"][:, None], 0.0, state[episodes["column"]])
        outputs, _ = pad_packed_sequence(self.core(parts, first[None])[0])
        outputs = outputs.flatten(0, 1)[episodes["back"]]
        return outputs.unflatten(0, features.shape[:2])

    def forward(self, batch):
        x = self.recurrent(self.head(batch["obs"]), batch["state"], batch["episodes"], batch["dones"])
        return self.policy(x), self.value(x).squeeze(-1)


def collect(generator):
    shape = (RECURRENCE, ROLLOUTS)
    dones = (torch.rand(shape, generator=generator) < 0.02).float()
    frames = torch.randint(0, 256, (*shape, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    return {
        "obs": frames.to(device),
        "actions": torch.randint(0, ACTIONS, shape, generator=generator).to(device),
        "advantages": torch.randn(shape, generator=generator).to(device),
        "returns": torch.randn(shape, generator=generator).to(device),
        "state": torch.randn(ROLLOUTS, HIDDEN, generator=generator).to(device),
        "episodes": episodes_of(dones, device),
        "dones": dones.to(device),
    }


def main():
    torch.manual_seed(0)
    model = PixelPolicy().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    generator = torch.Generator().manual_seed(2)
    batches = [collect(generator) for _ in range(4)]
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = batches[step % 4]
        logits, value = model(batch)
        chosen = Categorical(logits=logits, validate_args=False)
        ratio = (chosen.log_prob(batch["actions"]) + 2.48).exp()
        gain = batch["advantages"]
        surrogate = torch.min(ratio * gain, ratio.clamp(0.9, 1.1) * gain).mean()
        error = F.mse_loss(value, batch["returns"])
        loss = 0.5 * error - surrogate - 0.003 * chosen.entropy().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 4.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
