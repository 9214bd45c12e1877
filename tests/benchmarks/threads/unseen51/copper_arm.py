"""Behaviour cloning of a robot arm that pushes blocks, from patch features of a frozen vision model."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 7000))

EPISODES = 48
MAX_LENGTH = 110
PATCHES = 36
FEATURES = 96
ACTIONS = 2
WINDOW = 5
BATCH = 32


class PushFeatures(Dataset):
    """Whole episodes: features of the camera frames, padded to one length, and the actions taken."""

    def __init__(self, episodes=EPISODES, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(80, MAX_LENGTH + 1, (episodes,), generator=generator)
        self.features = torch.randn(episodes, MAX_LENGTH, PATCHES, FEATURES, generator=generator)
        mixing = torch.randn(FEATURES, ACTIONS, generator=generator) / math.sqrt(FEATURES)
        self.actions = torch.tanh(self.features.mean(dim=2) * math.sqrt(PATCHES) @ mixing)
        for episode, length in enumerate(self.lengths.tolist()):
            self.features[episode, length:] = 0.0
            self.actions[episode, length:] = 0.0

    def get_seq_length(self, index):
        return int(self.lengths[index])

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        length = self.get_seq_length(index)
        if VARIANT == "a":
            frames = range(length)
        else:
            frames = slice(0, length)
        return self.features[index, frames], self.actions[index, frames]


class WindowDataset(Dataset):
    """All windows of a few consecutive frames of the episodes of another dataset."""

    def __init__(self, dataset, window):
        self.dataset = dataset
        self.window = window
        self.slices = []
        for index in range(len(dataset)):
            length = dataset.dataset.get_seq_length(dataset.indices[index])
            self.slices += [(index, begin, begin + window) for begin in range(length - window + 1)]

    def __len__(self):
        return len(self.slices)

    def __getitem__(self, item):
        index, begin, end = self.slices[item]
        return [value[begin:end] for value in self.dataset[index]]


class PatchPool(nn.Module):
    """Attention pooling of the patches of a frame into one token."""

    def __init__(self, features, width):
        super().__init__()
        self.query = nn.Parameter(torch.randn(width) / math.sqrt(width))
        self.embed = nn.Linear(features, width)

    def forward(self, patches):
        tokens = F.gelu(self.embed(patches))
        weights = torch.softmax(tokens @ self.query, dim=-1)
        return (weights.unsqueeze(-1) * tokens).sum(dim=-2)


class Block(nn.Module):
    """Causal transformer block over the frames of the window."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_a = nn.LayerNorm(width)
        self.norm_b = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_a(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_b(x))


class ArmPolicy(nn.Module):
    """Predicts the action of each frame of the window."""

    def __init__(self, width=128, depth=3, heads=4):
        super().__init__()
        self.pool = PatchPool(FEATURES, width)
        self.place = nn.Parameter(torch.zeros(WINDOW, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, ACTIONS), nn.Tanh())

    def forward(self, frames):
        return self.head(self.blocks(self.pool(frames) + self.place))


def endless(loader):
    """Batches of the loader, pass after pass."""
    while True:
        yield from loader


@torch.no_grad()
def validate(policy, loader, batches=4):
    """Mean error of the actions over a few validation batches."""
    policy.eval()
    errors = []
    for number, (frames, actions) in enumerate(loader):
        if number == batches:
            break
        errors.append(F.mse_loss(policy(frames), actions).item())
    policy.train()
    return sum(errors) / len(errors)


def main():
    torch.manual_seed(0)
    episodes = PushFeatures()
    train, valid = random_split(episodes, [EPISODES - 6, 6], generator=torch.Generator().manual_seed(1))
    train_loader = DataLoader(
        WindowDataset(train, WINDOW),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(2),
    )
    valid_loader = DataLoader(WindowDataset(valid, WINDOW), batch_size=BATCH)
    policy = ArmPolicy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 100))

    warm = min(10, STEPS // 2)
    batches = endless(train_loader)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        frames, actions = next(batches)
        loss = F.mse_loss(policy(frames), actions)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 400 == 399:
            print(f"step {step + 1} train {loss.item():.4f} valid {validate(policy, valid_loader):.4f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
