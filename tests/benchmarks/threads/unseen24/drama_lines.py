"""A language model for stage plays; the averages of the optimiser rest in host memory between updates."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
BATCH = int(os.environ.get("BATCH", 64))
LENGTH = int(os.environ.get("LENGTH", 512))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 6))
WORDS, HEADS = 8192, 8
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PIN = device.type == "cuda"


class RestingStates:
    """Wraps an optimiser whose averages are on the device during the update only."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.resting = {}

    def all_states(self):
        for state in self.optimizer.state.values():
            for key in ("exp_avg", "exp_avg_sq"):
                yield state, key

    def fetch(self):
        for state, key in self.all_states():
            state[key] = state[key].to(device, non_blocking=True)

    def put_away(self):
        for state, key in self.all_states():
            state[key] = self.to_host(state[key], (id(state), key))
        if PIN:
            torch.cuda.synchronize()

    def to_host(self, tensor, name):
        if VARIANT == "b":
            if name not in self.resting:
                self.resting[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=PIN)
            return self.resting[name].copy_(tensor, non_blocking=True)
        tensor = tensor.to("cpu", copy=True)
        return tensor.pin_memory() if PIN else tensor

    def step(self):
        self.fetch()
        self.optimizer.step()
        self.put_away()

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PlayModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.words(tokens) + self.place.weight)))


def plays(count):
    jumps = torch.randint(0, 6, (count, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, 1)) + jumps.cumsum(1)) % WORDS).to(device)


def main():
    torch.manual_seed(19)
    model = PlayModel().to(device)
    optimizer = RestingStates(torch.optim.AdamW(model.parameters(), lr=3e-4))
    archive = plays(8 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = archive[step % 8 * BATCH : (step % 8 + 1) * BATCH]
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
