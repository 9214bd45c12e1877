"""Trains a mixer network that forecasts the brightness of lamp posts along a street."""

import inspect
import os
import sys
import time
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "600"))
BATCH = int(os.environ.get("BATCH", "96"))
POSTS = int(os.environ.get("POSTS", "64"))
HOURS = int(os.environ.get("HOURS", "96"))
WIDTH = int(os.environ.get("WIDTH", "512"))
BLOCKS = int(os.environ.get("BLOCKS", "24"))


def caller_name():
    """Name of the function that called the caller of this one."""
    if VARIANT == "a":
        return inspect.stack()[2].function
    return sys._getframe(2).f_code.co_name


class Ledger:
    """Counts how many numbers each part of the network hands on."""

    def __init__(self):
        self.handed_on = Counter()

    def note(self, x):
        self.handed_on[caller_name()] += x.numel()
        return x


class MixerBlock(nn.Module):
    def __init__(self, posts, width, ledger):
        super().__init__()
        self.ledger = ledger
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.along1, self.along2 = nn.Linear(posts, 4 * posts), nn.Linear(4 * posts, posts)
        self.across1, self.across2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def mix_posts(self, x):
        y = self.along2(F.gelu(self.along1(x.transpose(1, 2)))).transpose(1, 2)
        return self.ledger.note(y)

    def mix_features(self, x):
        return self.ledger.note(self.across2(F.gelu(self.across1(x))))

    def forward(self, x):
        x = x + self.mix_posts(self.norm1(x))
        x = x + self.mix_features(self.norm2(x))
        return self.ledger.note(x)


class Street(nn.Module):
    def __init__(self, ledger):
        super().__init__()
        self.ledger = ledger
        self.embed = nn.Linear(HOURS, WIDTH)
        self.blocks = nn.Sequential(*[MixerBlock(POSTS, WIDTH, ledger) for _ in range(BLOCKS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 24)

    def forward(self, x):
        x = self.ledger.note(self.embed(x))
        return self.head(self.norm(self.blocks(x)))


class Trainer:
    def __init__(self, model, device):
        self.model = model
        self.device = device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")

    def loss_of(self, past, future):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            guess = self.model(past)
        return F.mse_loss(guess.float(), future)

    def train_step(self, past, future):
        loss = self.loss_of(past, future)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def make_street(count, device):
    """Brightness by the hour: a daily wave with a phase and a level for each post."""
    hours = torch.arange(HOURS + 24, device=device) * (2 * torch.pi / 24)
    phase = torch.rand(count, POSTS, 1, device=device)
    light = torch.sin(hours + phase) + 0.1 * torch.randn(count, POSTS, HOURS + 24, device=device)
    return light[..., :HOURS].contiguous(), light[..., HOURS:].contiguous()


def main():
    torch.manual_seed(13)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ledger = Ledger()
    trainer = Trainer(Street(ledger).to(device), device)
    past, future = make_street(8 * BATCH, device)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            trainer.wait()
            start = time.perf_counter()
        rows = slice((step % 8) * BATCH, (step % 8 + 1) * BATCH)
        loss = trainer.train_step(past[rows], future[rows])
    trainer.wait()
    elapsed = time.perf_counter() - start
    print(f"handed on by {', '.join(sorted(ledger.handed_on))}")
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
