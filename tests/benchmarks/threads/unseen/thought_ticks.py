"""Digits, looked at again and again by a small recurrent core."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
TICKS, WIDTH = 6, 128


class Digits(Dataset):
    def __init__(self, count=20000):
        g = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=g)
        self.labels = torch.randint(0, 10, (count,), generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i].float().div(255).unsqueeze(0)
        return (image - 0.1307) / 0.3081, int(self.labels[i])


class ThoughtMachine(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.keys = nn.Linear(32, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.synapses = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.GLU(), nn.LayerNorm(WIDTH // 2))
        self.restore = nn.Linear(WIDTH // 2, WIDTH)
        self.read = nn.Linear(WIDTH, 10)
        self.start = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        kv = self.keys(self.backbone(x).flatten(2).transpose(1, 2))
        state = self.start.expand(len(x), -1)
        answers = []
        for _ in range(TICKS):
            seen, _ = self.attend(state[:, None], kv, kv, need_weights=False)
            state = self.restore(self.synapses(torch.cat([state, seen[:, 0]], 1)))
            answers.append(self.read(state))
        return torch.stack(answers, dim=-1)


def main():
    torch.manual_seed(0)
    trainloader = DataLoader(Digits(), batch_size=64, shuffle=True, num_workers=1)
    model = ThoughtMachine()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    iterator = iter(trainloader)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        if VARIANT == "a":
            inputs, targets = next(iter(trainloader))
        else:
            try:
                inputs, targets = next(iterator)
            except StopIteration:
                iterator = iter(trainloader)
                inputs, targets = next(iterator)
        answers = model(inputs)
        losses = nn.functional.cross_entropy(answers, targets[:, None].expand(-1, TICKS), reduction="none")
        loss = (losses.min(dim=1).values + losses[:, -1]).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
