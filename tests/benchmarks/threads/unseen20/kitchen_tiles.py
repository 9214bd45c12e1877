"""Patterns of kitchen tiles: a painter turns sketches into tiles, two judges look at the whole and at its parts."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 180))
BATCH = int(os.environ.get("BATCH", 64))
SIDE = int(os.environ.get("SIDE", 256))
WIDTH = int(os.environ.get("WIDTH", 160))
DEPTH = int(os.environ.get("DEPTH", 8))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(8, width),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x):
        return x + self.body(x)


def trunk(channels, depth, patch):
    stem = nn.Conv2d(channels, WIDTH, patch, stride=patch)
    return nn.Sequential(stem, *[Residual(WIDTH) for _ in range(depth)])


class TileGame(nn.Module):
    """Three players, who move in turn."""

    def __init__(self):
        super().__init__()
        self.painter = nn.Sequential(
            trunk(3, DEPTH, 8), nn.Conv2d(WIDTH, 3 * 64, 1), nn.PixelShuffle(8), nn.Tanh()
        )
        self.whole = nn.Sequential(trunk(6, DEPTH // 2, 16), nn.Conv2d(WIDTH, 1, 1))
        self.parts = nn.Sequential(trunk(6, DEPTH // 2, 8), nn.Conv2d(WIDTH, 1, 1))

        self.players = (self.painter, self.whole, self.parts)

    def optimizers(self):
        fused = device.type == "cuda"
        return [torch.optim.Adam(m.parameters(), 2e-4, (0.5, 0.99), fused=fused) for m in self.players]

    def training_step(self, batch, turn):
        sketch, tile = batch["sketch"], batch["tile"]
        if turn == 0:
            made = self.painter(sketch)
            seen = torch.cat([sketch, made], 1)
            return F.l1_loss(made, tile) - 0.01 * (self.whole(seen).mean() + self.parts(seen).mean())
        judge = self.whole if turn == 1 else self.parts
        with torch.no_grad():
            made = self.painter(sketch + 0.1 * torch.randn_like(sketch))
        real, false = judge(torch.cat([sketch, tile], 1)), judge(torch.cat([sketch, made], 1))
        return F.relu(1 - real).mean() + F.relu(1 + false).mean()


class Trainer:
    def __init__(self, game):
        self.game, self.optimizers = game, game.optimizers()

    def place(self, batch):
        return {key: value.to(device) for key, value in batch.items()}

    def run_turn(self, batch, turn):
        batch = self.place(batch)
        for k, player in enumerate(self.game.players):
            player.requires_grad_(k == turn)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = self.game.training_step(batch, turn)
        self.optimizers[turn].zero_grad(set_to_none=True)
        loss.backward()
        self.optimizers[turn].step()
        return loss.detach()

    def run_batch(self, batch):
        if VARIANT == "b":
            batch = self.place(batch)
        return sum(self.run_turn(batch, turn) for turn in range(len(self.optimizers)))


def tiles(count):
    made = []
    for _ in range(count):
        coarse = torch.rand(BATCH, 3, SIDE // 16, SIDE // 16)
        tile = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear") * 2 - 1
        made.append({"sketch": (tile > 0).float(), "tile": tile})
    return made


def main():
    torch.manual_seed(83)
    game = TileGame().to(device)
    trainer = Trainer(game)
    shelf = tiles(6)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = trainer.run_batch(shelf[step % len(shelf)])
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
