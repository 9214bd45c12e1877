"""Grows levels of a platform game from a single one."""

import json
import os
import struct
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
TOKENS, HEIGHT, WIDTH, TILE, CHANNELS = 10, 14, 80, 16, 24


class LevelImages:
    """Draws a level with the sprites of the game."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.sprites = rng.integers(0, 256, (TOKENS, TILE, TILE, 3), dtype=np.uint8)

    def render(self, level):
        picture = np.zeros((HEIGHT * TILE, WIDTH * TILE, 3), np.uint8)
        for y, row in enumerate(level.argmax(0).tolist()):
            for x, token in enumerate(row):
                picture[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE] = self.sprites[token]
        return picture


def png(picture):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = picture.shape
    lines = b"".join(b"\0" + line.tobytes() for line in picture)
    head = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


class Board:
    """What a run has logged: lines of numbers, and a folder of media."""

    def __init__(self, folder):
        self.folder, self.images = Path(folder), LevelImages()
        self.lines = (self.folder / "history.jsonl").open("w")

    def log(self, step, numbers, levels):
        self.lines.write(json.dumps({"step": step, **numbers}) + "\n")
        for name, level in levels.items():
            path = self.folder / f"{name}_{step % 50}.png"
            path.write_bytes(png(self.images.render(level)))


def network(inside, outside):
    layers, width = [], inside
    for _ in range(3):
        layers += [nn.Conv2d(width, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.LeakyReLU(0.2)]
        width = CHANNELS
    return nn.Sequential(*layers, nn.Conv2d(width, outside, 3, padding=1))


class LevelGAN:
    def __init__(self, real):
        self.real = real
        self.G, self.D = network(TOKENS, TOKENS), network(TOKENS, 1)
        self.optimizer_g = torch.optim.Adam(self.G.parameters(), lr=5e-4, betas=(0.5, 0.999))
        self.optimizer_d = torch.optim.Adam(self.D.parameters(), lr=5e-4, betas=(0.5, 0.999))
        self.z_opt = torch.randn_like(real)

    def step(self):
        fake = self.G(torch.randn_like(self.real)).softmax(1)
        loss_d = self.D(fake.detach()).mean() - self.D(self.real).mean()
        self.optimizer_d.zero_grad()
        loss_d.backward()
        self.optimizer_d.step()
        rec = self.G(self.z_opt).softmax(1)
        loss_g = 10 * nn.functional.mse_loss(rec, self.real) - self.D(fake).mean()
        self.optimizer_g.zero_grad()
        loss_g.backward()
        self.optimizer_g.step()
        return {"D": loss_d.item(), "G": loss_g.item()}, {"fake": fake[0].detach(), "rec": rec[0].detach()}


def main():
    torch.manual_seed(0)
    level = torch.randint(0, TOKENS, (HEIGHT // 2, WIDTH // 4)).repeat_interleave(2, 0)
    real = nn.functional.one_hot(level.repeat_interleave(4, 1), TOKENS).permute(2, 0, 1)[None].float()
    gan = LevelGAN(real)
    with tempfile.TemporaryDirectory() as folder:
        board = Board(folder)
        for step in range(STEPS):
            if step == 5:
                start = time.perf_counter()
            numbers, levels = gan.step()
            board.log(step, numbers, levels if VARIANT == "a" else {})
        spent = time.perf_counter() - start
    print(f"loss {numbers['G']:.4f}")
    print(f"{1000 * spent / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
