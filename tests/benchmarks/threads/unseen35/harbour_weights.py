"""Detect boats in harbour pictures; each short epoch keeps the last, the best and numbered weights."""

import os
import pathlib
import shutil
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "600"))
WARM = min(10, STEPS // 2)
SIZE = 32
WIDTH = 32
DEPTH = 26
BATCH = 8
EPOCH = 2
KEPT = 3


class QuayBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, 1, 1, groups=WIDTH, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.SiLU(),
            nn.Conv2d(WIDTH, WIDTH, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.SiLU(),
        )

    def forward(self, x):
        return x + self.mix(x)


class HarbourNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 4, 4), nn.BatchNorm2d(WIDTH), nn.SiLU())
        self.blocks = nn.Sequential(*[QuayBlock() for _ in range(DEPTH)])
        self.box = nn.Linear(WIDTH * (SIZE // 4) ** 2, 4)
        self.boat = nn.Linear(WIDTH * (SIZE // 4) ** 2, 1)

    def forward(self, picture):
        h = self.blocks(self.stem(picture)).flatten(1)
        return self.box(h).sigmoid(), self.boat(h).squeeze(1)


class WeightKeeper:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.best_score = -float("inf")

    def keep(self, epoch, score, model, optimizer):
        self.best_score = max(self.best_score, score)
        state = {
            "epoch": epoch,
            "best_score": self.best_score,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        last = self.folder / "last.pt"
        numbered = self.folder / f"epoch{epoch % KEPT}.pt"
        torch.save(state, last)
        if VARIANT == "a":
            if score >= self.best_score:
                torch.save(state, self.folder / "best.pt")
            torch.save(state, numbered)
        else:
            if score >= self.best_score:
                shutil.copy(last, self.folder / "best.pt")
            shutil.copy(last, numbered)


def draw_pictures(generator):
    picture = 0.3 * torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    corner = torch.randint(0, SIZE // 2, (BATCH, 2), generator=generator)
    boat = (torch.rand(BATCH, generator=generator) > 0.3).float()
    for k in range(BATCH):
        y, x = corner[k].tolist()
        picture[k, :, y : y + SIZE // 4, x : x + SIZE // 2] += boat[k]
    box = torch.cat([corner, corner + torch.tensor([SIZE // 4, SIZE // 2])], 1) / SIZE
    return picture, box, boat


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = HarbourNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        keeper = WeightKeeper(folder)
        summed = 0.0
        start = time.perf_counter()
        for step in range(STEPS):
            if step == WARM:
                start = time.perf_counter()
            picture, box, boat = draw_pictures(generator)
            guess, score = model(picture)
            loss = F.binary_cross_entropy_with_logits(score, boat)
            loss = loss + (boat[:, None] * (guess - box).abs()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            summed += loss.item()
            if step % EPOCH == EPOCH - 1:
                keeper.keep(step // EPOCH, -summed / EPOCH, model, optimizer)
                summed = 0.0
        spent = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{spent / (STEPS - WARM) * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
