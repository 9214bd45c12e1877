"""A language model of old sagas without attention: gated convolutions over the words before."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
BATCH = int(os.environ.get("BATCH", 16))
LENGTH = int(os.environ.get("LENGTH", 1024))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 12))
WORKERS = 8 if VARIANT == "b" else 16
WORDS = 16384
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Sagas(Dataset):
    def __init__(self, words):
        rng = np.random.default_rng(8)
        steps = rng.integers(0, 7, words)
        self.words = (np.cumsum(steps) % WORDS).astype(np.uint16)

    def __len__(self):
        return (len(self.words) - 1) // LENGTH

    def __getitem__(self, k):
        piece = self.words[k * LENGTH : k * LENGTH + LENGTH + 1].astype(np.int64)
        return torch.from_numpy(piece[:-1]), torch.from_numpy(piece[1:])


class Block(nn.Module):
    def __init__(self, width, reach):
        super().__init__()
        self.reach = reach
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inward = nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 4, dilation=reach, groups=width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y, gate = self.inward(self.norm1(x)).chunk(2, -1)
        y = self.conv(F.pad(y.transpose(1, 2), (3 * self.reach, 0))).transpose(1, 2)
        x = x + self.out(y * torch.sigmoid(gate))
        return x + self.mlp(self.norm2(x))


class SagaModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*[Block(WIDTH, 2 ** (k % 8)) for k in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        return self.head(self.norm(self.blocks(self.words(words))))


def main():
    torch.manual_seed(2)
    loader = DataLoader(
        Sagas(LENGTH * BATCH * STEPS + 1),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        pin_memory=device.type == "cuda",
    )
    model = SagaModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    for step, (words, following) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        words, following = words.to(device, non_blocking=True), following.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(words)
            loss = F.cross_entropy(scores.flatten(0, 1), following.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
