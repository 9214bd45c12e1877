"""A policy for several kinds of robot arms, learnt from shown episodes."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 700))
BATCH = int(os.environ.get("BATCH", 128))
WIDTH = int(os.environ.get("WIDTH", 512))
EPISODES = int(os.environ.get("EPISODES", 1200))
WORKERS = int(os.environ.get("WORKERS", 6))
PAST, AHEAD, SENSORS = 16, 16, 24
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Recordings(Dataset):
    """One item is a moment of an episode: what the arm sensed before, what it did after."""

    def __init__(self, episodes):
        rng = np.random.default_rng(1)
        self.arms = {f"arm{k}": {f"joint{j}": j for j in range(6 + k % 7)} for k in range(40)}
        self.arm_of = [f"arm{k}" for k in rng.integers(0, 40, episodes)]
        lengths = rng.integers(120, 240, episodes)
        self.episode_indices = [e for e, n in enumerate(lengths) for _ in range(n)]
        self.log = [rng.standard_normal((n, SENSORS), dtype=np.float32).cumsum(0) * 0.1 for n in lengths]
        self.settings = self.derive() if VARIANT == "b" else None
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).tolist() if VARIANT == "b" else None

    def __len__(self):
        return len(self.episode_indices)

    def derive(self):
        """Widths that all arms are padded to, and the order of the arms and of their joints."""
        order = {name: k for k, name in enumerate(sorted(self.arms))}
        width = max(len(joints) for joints in self.arms.values())
        places = {a: sorted(joints.values()) for a, joints in self.arms.items()}
        return order, width, places

    def moment(self, item):
        episode = self.episode_indices[item]
        if self.offsets is not None:
            return episode, item - self.offsets[episode]
        return episode, item - self.episode_indices.index(episode)

    def __getitem__(self, item):
        episode, now = self.moment(item)
        order, width, places = self.settings or self.derive()
        log, arm = self.log[episode], self.arm_of[episode]
        before = log[np.clip(np.arange(now - PAST + 1, now + 1), 0, None)]
        after = log[np.clip(np.arange(now + 1, now + 1 + AHEAD), None, len(log) - 1)]
        joints = np.zeros((AHEAD, width), dtype=np.float32)
        joints[:, : len(places[arm])] = after[:, places[arm]]
        mask = np.arange(width) < len(places[arm])
        return before, order[arm], joints, mask


class ArmPolicy(nn.Module):
    def __init__(self, joints):
        super().__init__()
        self.joints = joints
        self.inward = nn.Linear(SENSORS, WIDTH)
        self.arm = nn.Embedding(40, WIDTH)
        self.asked = nn.Parameter(torch.randn(AHEAD, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, joints)

    def forward(self, before, arm):
        x = self.inward(before) + self.arm(arm)[:, None]
        x = torch.cat([x, self.asked.expand(len(x), -1, -1)], 1)
        return self.out(self.body(x)[:, -AHEAD:])


def main():
    torch.manual_seed(31)
    recordings = Recordings(EPISODES)
    loader = DataLoader(
        recordings,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=WORKERS > 0,
        pin_memory=device.type == "cuda",
    )
    model = ArmPolicy(12).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    step, warm = 0, min(20, STEPS // 2)
    while step < STEPS:
        for batch in loader:
            if step == warm:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
            before, arm, joints, mask = (x.to(device, non_blocking=True) for x in batch)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                predicted = model(before, arm)
            error = F.smooth_l1_loss(predicted.float(), joints, reduction="none") * mask[:, None]
            loss = error.sum() / (mask.sum() * AHEAD)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
