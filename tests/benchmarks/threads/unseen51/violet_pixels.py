"""Train a gated autoregressive model of small binary pictures, with a trainer that logs as it goes."""

import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1600))

SIZE = 20
CHANNELS = 48
BLOCKS = 4
BATCH = 24


def make_pictures(count, seed):
    """Binary pictures of a few filled rectangles and discs."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    pictures = np.zeros((count, 1, SIZE, SIZE), dtype=np.float32)
    for picture in pictures[:, 0]:
        for _ in range(3):
            top, left = rng.integers(0, SIZE, 2)
            if rng.random() < 0.5:
                picture[top : top + 6, left : left + 4] = 1.0
            else:
                picture[(rows - top) ** 2 + (columns - left) ** 2 < 10] = 1.0
    return torch.from_numpy(pictures)


class CausalConv2d(nn.Conv2d):
    """Convolution that sees only pixels above and to the left."""

    def __init__(self, inner, outer, kernel, include_centre):
        super().__init__(inner, outer, kernel, padding=kernel // 2)
        mask = torch.zeros_like(self.weight)
        middle = kernel // 2
        mask[:, :, :middle] = 1.0
        mask[:, :, middle, : middle + include_centre] = 1.0
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


class GatedBlock(nn.Module):
    """Gated causal convolution with a residual path."""

    def __init__(self, channels):
        super().__init__()
        self.conv = CausalConv2d(channels, 2 * channels, 5, include_centre=1)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        value, gate = self.conv(F.elu(x)).chunk(2, dim=1)
        return x + self.mix(torch.tanh(value) * torch.sigmoid(gate))


class PixelModel(nn.Module):
    """Logits of each pixel given those before it."""

    def __init__(self, channels=CHANNELS, blocks=BLOCKS):
        super().__init__()
        self.first = CausalConv2d(1, channels, 7, include_centre=0)
        self.blocks = nn.Sequential(*[GatedBlock(channels) for _ in range(blocks)])
        self.last = nn.Sequential(
            nn.ELU(), nn.Conv2d(channels, channels, 1), nn.ELU(), nn.Conv2d(channels, 1, 1)
        )

    def forward(self, x):
        return self.last(self.blocks(self.first(x)))


class SummaryWriter:
    """Keeps scalars in memory and writes them to a file of lines every hundred entries or more."""

    def __init__(self, folder, max_queue=400):
        self.path = os.path.join(folder, "scalars.jsonl")
        self.max_queue = max_queue
        self.queue = []

    def add_scalars(self, main_tag, values, step):
        now = time.time()
        for name, value in values.items():
            self.queue.append({"tag": f"{main_tag}/{name}", "value": value, "step": step, "time": now})
        if len(self.queue) >= self.max_queue:
            self.flush()

    def flush(self):
        with open(self.path, "a") as target:
            target.writelines(json.dumps(entry) + "\n" for entry in self.queue)
        self.queue.clear()


class Trainer:
    """Trains, logs metrics of the steps, evaluates and keeps the best score."""

    def __init__(self, model, train_loader, eval_loader, writer, log_every):
        self.model = model
        self.train_loader = train_loader
        self.eval_loader = eval_loader
        self.writer = writer
        self.log_every = log_every
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.MultiplicativeLR(self.optimizer, lambda _: 0.9998)
        self.examples = 0
        self.best = float("inf")

    def log(self, step, loss, norm, took):
        values = {
            "loss": loss.item(),
            "bits_per_pixel": loss.item() / np.log(2.0),
            "gradient_norm": norm.item(),
            "learning_rate": self.schedule.get_last_lr()[0],
            "examples": self.examples,
            "seconds_per_step": took,
        }
        self.writer.add_scalars("train", values, step)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [F.binary_cross_entropy_with_logits(self.model(x), x).item() for (x,) in self.eval_loader]
        self.model.train()
        self.best = min(self.best, sum(losses) / len(losses))
        return self.best

    def train_step(self, x):
        loss = F.binary_cross_entropy_with_logits(self.model(x), x)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.examples += len(x)
        return loss, norm

    def run(self, steps):
        warm = min(10, steps // 2)
        step = 0
        while step < steps:
            for (x,) in self.train_loader:
                if step == steps:
                    break
                began = time.perf_counter()
                if step == warm:
                    start = began
                loss, norm = self.train_step(x)
                if step % self.log_every == 0:
                    self.log(step, loss, norm, time.perf_counter() - began)
                step += 1
                if step % 200 == 0:
                    print(f"step {step} loss {loss.item():.4f} best {self.evaluate():.4f}")
        elapsed = time.perf_counter() - start
        print(f"loss {loss.item():.5f}")
        print(f"{1000 * elapsed / (steps - warm):.2f} ms per step")


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(
        TensorDataset(make_pictures(3000, 1)),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(2),
    )
    eval_loader = DataLoader(TensorDataset(make_pictures(48, 3)), batch_size=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        trainer = Trainer(
            PixelModel(), train_loader, eval_loader, writer, log_every=1 if VARIANT == "a" else 100
        )
        trainer.run(STEPS)
        writer.flush()


if __name__ == "__main__":
    main()
