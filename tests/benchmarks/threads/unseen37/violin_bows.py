"""Recognise bowing techniques of the violin from short recordings."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "800"))
WARM = min(10, STEPS // 2)
CLIPS = 512
LENGTH = 4800
BATCH = 24
WIDTH = 48
TECHNIQUES = 8


class BowBlock(nn.Module):
    def __init__(self, size, stride):
        super().__init__()
        self.first = nn.Conv1d(size, size, 9, stride=stride, padding=4)
        self.norm = nn.BatchNorm1d(size)
        self.second = nn.Conv1d(size, size, 9, padding=4)
        self.stride = stride

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)))
        return F.relu(self.second(y) + F.avg_pool1d(x, self.stride))


class BowNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(1, WIDTH, 16, stride=8, padding=4)
        self.blocks = nn.Sequential(*[BowBlock(WIDTH, stride) for stride in (2, 2, 1)])
        self.head = nn.Linear(WIDTH, TECHNIQUES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(2))


class ClipStore:
    """All recordings in memory, drawn in random order."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.randint(0, TECHNIQUES, (CLIPS,), generator=generator)
        time_axis = torch.arange(LENGTH) / 800
        tones = torch.sin(2 * torch.pi * time_axis * (3 + 5 * self.labels[:, None]))
        self.clips = (tones + torch.randn(CLIPS, LENGTH, generator=generator)).unsqueeze(1)
        self.order = torch.Generator().manual_seed(2)

    def batch(self):
        picked = torch.randint(0, CLIPS, (BATCH,), generator=self.order)
        return self.clips[picked], self.labels[picked]


class Runner:
    def __init__(self):
        self.model = BowNet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        self.losses = []

    def clear(self):
        if VARIANT == "a":
            self.model.zero_grad(set_to_none=False)
        else:
            for weight in self.model.parameters():
                weight.grad = None

    def train_step(self, clips, labels):
        output = self.model(clips)
        loss = F.cross_entropy(output, labels, label_smoothing=0.1)
        self.clear()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


def main():
    torch.manual_seed(0)
    store = ClipStore()
    runner = Runner()
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        runner.train_step(*store.batch())
    spent = (time.perf_counter() - start) / (STEPS - WARM)
    print(f"loss {runner.losses[-1]:.5f}")
    print(f"{spent * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
