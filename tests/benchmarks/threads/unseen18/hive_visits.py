"""Which flower a bee came from, by vectors of its flight: a residual net and figures over each epoch."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 220))
BATCH = int(os.environ.get("BATCH", 1024))
WIDTH = int(os.environ.get("WIDTH", 1280))
DEPTH = int(os.environ.get("DEPTH", 16))
EPOCH, FLOWERS = 16, 30
PARTS = {"wings": 64, "path": 96, "speed": 32, "weather": 16, "scent": 48, "noise": 24}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class FlowerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.ModuleDict({k: nn.Linear(n, WIDTH) for k, n in PARTS.items()})
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])
        self.leave = nn.Linear(WIDTH, FLOWERS)

    def forward(self, batch):
        x = self.blocks(sum(layer(batch[k]) for k, layer in self.enter.items()))
        batch["scores"] = self.leave(x)
        batch["shares"] = batch["scores"].softmax(1)
        return batch


def to_samples(batch):
    """One dictionary per bee."""
    count = len(batch["flower"])
    return [{key: values[i] for key, values in batch.items()} for i in range(count)]


class EpochResults:
    """Gathers what the figures at the end of an epoch are computed from."""

    keys = ("bee", "flower", "shares")

    def __init__(self):
        self.samples, self.batches = [], []

    def collect(self, batch):
        batch = {key: values.detach().cpu() for key, values in batch.items()}
        if VARIANT == "b":
            self.batches.append(batch)
        else:
            self.samples += to_samples(batch)

    def table(self):
        if VARIANT == "b":
            return {k: torch.cat([batch[k] for batch in self.batches]) for k in self.keys}
        return {k: torch.stack([sample[k] for sample in self.samples]) for k in self.keys}

    def figures(self):
        table = self.table()
        right = table["shares"].argmax(1) == table["flower"]
        sure = table["shares"].amax(1)
        self.__init__()
        return right.float().mean().item(), (sure - right.float()).abs().mean().item()


def flights(count):
    flower = torch.randint(0, FLOWERS, (count,))
    hive = {"bee": torch.arange(count), "flower": flower}
    for key, size in PARTS.items():
        hive[key] = torch.randn(FLOWERS, size)[flower] + 2 * torch.randn(count, size)
    return hive


def main():
    torch.manual_seed(31)
    model = FlowerNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    hive = {k: v.to(device) for k, v in flights(EPOCH * BATCH).items()}
    results = EpochResults()
    warm = min(16, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        first = step % EPOCH * BATCH
        batch = model({k: v[first : first + BATCH] for k, v in hive.items()})
        loss = F.cross_entropy(batch["scores"], batch["flower"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        results.collect(batch)
        if step % EPOCH == EPOCH - 1:
            accuracy, gap = results.figures()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
