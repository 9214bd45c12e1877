"""Signs of a sign language from short clips of a hand: frames through a convolutional net, then a recurrent one."""

import contextlib
import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
BATCH = int(os.environ.get("BATCH", 96))
FRAMES = int(os.environ.get("FRAMES", 24))
WIDTH = int(os.environ.get("WIDTH", 64))
HIDDEN = int(os.environ.get("HIDDEN", 256))
SIDE, SIGNS = 64, 40
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.skip = nn.Conv2d(before, after, 1, stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + self.skip(x))


class Memory(nn.Module):
    """A recurrent layer whose matrix is orthogonal, so that what it holds neither fades nor grows."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.inward = nn.Linear(inputs, hidden)
        self.onward = parametrizations.orthogonal(nn.Linear(hidden, hidden, bias=False))
        self.start = nn.Parameter(torch.zeros(hidden))
        self.threshold = nn.Parameter(torch.zeros(hidden))

    def forward(self, x):
        x, state = self.inward(x), self.start.expand(x.shape[0], -1)
        with parametrize.cached() if VARIANT == "b" else contextlib.nullcontext():
            for t in range(x.shape[1]):
                y = x[:, t] + self.onward(state)
                state = torch.sign(y) * F.relu(y.abs() + self.threshold)
        return state


class SignModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(3, WIDTH, 5, 2, 2),
            Residual(WIDTH, WIDTH, 1),
            Residual(WIDTH, 2 * WIDTH, 2),
            Residual(2 * WIDTH, 4 * WIDTH, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.memory = Memory(4 * WIDTH, HIDDEN)
        self.head = nn.Linear(HIDDEN, SIGNS)

    def forward(self, clips):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            seen = self.frames(clips.flatten(0, 1).contiguous(memory_format=torch.channels_last))
        return self.head(self.memory(seen.float().unflatten(0, clips.shape[:2])))


def film(count):
    """A bright spot that moves along a line whose direction tells the sign."""
    signs = torch.randint(0, SIGNS, (count,))
    angle = signs / SIGNS * 6.2832
    way = torch.arange(FRAMES) / FRAMES - 0.5
    x, y = (SIDE / 2 + SIDE * 0.8 * way * part[:, None] for part in (angle.cos(), angle.sin()))
    at = torch.arange(SIDE)
    far = (at - x[..., None]).square()[..., None, :] + (at - y[..., None]).square()[..., None]
    clips = torch.exp(-far / 40)[:, :, None] + 0.2 * torch.randn(count, FRAMES, 3, SIDE, SIDE)
    return clips.to(device), signs.to(device)


def main():
    torch.manual_seed(19)
    model = SignModel().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    clips, signs = film(4 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        loss = F.cross_entropy(model(clips[rows]), signs[rows])
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
