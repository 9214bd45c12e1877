"""A multitask network for assays of molecules: fingerprints in, one answer per task out."""

import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 12 if SMALL else 6000))
WARMUP = 4 if SMALL else 40

device = "cuda" if torch.cuda.is_available() else "cpu"
MOLECULES = 64 if SMALL else 60 * 24576
BATCH = 16 if SMALL else 24576
BITS = 64 if SMALL else 2048
WIDTH = 32 if SMALL else 1024
LAYERS = 2 if SMALL else 12
TASKS = 12
CHECKPOINT_INTERVAL = 1 if VARIANT == "a" else 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), 0.1, self.training))


class Multitask(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(BITS, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.out = nn.Linear(WIDTH, TASKS)

    def forward(self, x):
        return self.out(self.blocks(F.gelu(self.inp(x))))


class Keeper:
    """Writes the state of the training to a folder; the newest two stay."""

    def __init__(self, folder, model, optimizer):
        self.folder, self.model, self.optimizer = folder, model, optimizer
        self.count = 0

    def save(self, epoch):
        state = {
            "epoch": epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, os.path.join(self.folder, f"state-{self.count % 2}.pt"))
        self.count += 1


def clock():
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def fit(model, optimizer, keeper, bits, active, weight):
    """Epochs over all molecules until STEPS updates are made."""
    step, epoch, begin = 0, 0, clock()
    g = torch.Generator(device=device).manual_seed(8)
    while step < STEPS:
        order = torch.randperm(MOLECULES, generator=g, device=device)
        for part in order.split(BATCH):
            if step == WARMUP:
                begin = clock()
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(bits[part].float())
            loss = F.binary_cross_entropy_with_logits(logits.float(), active[part], weight=weight[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                return loss.item(), clock() - begin
        epoch += 1
        if epoch % CHECKPOINT_INTERVAL == 0:
            keeper.save(epoch)


def main():
    torch.manual_seed(0)
    model = Multitask().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device == "cuda")
    g = torch.Generator(device=device).manual_seed(7)
    bits = torch.rand(MOLECULES, BITS, generator=g, device=device) < 0.05
    active = (torch.rand(MOLECULES, TASKS, generator=g, device=device) < 0.2).float()
    weight = (torch.rand(MOLECULES, TASKS, generator=g, device=device) < 0.7).float()
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(folder, model, optimizer)
        loss, took = fit(model, optimizer, keeper, bits, active, weight)
    print(f"loss {loss:.4f}")
    print(f"{took * 1000 / (STEPS - WARMUP):.2f} ms per step")


if __name__ == "__main__":
    main()
