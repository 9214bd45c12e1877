"""Train a small language model on shards of tokens, with as many steps as fit in the time.

Shards are files of 16-bit tokens behind a short header.  Each rank takes its part of every batch in the
order of the shards; a validation over fixed tokens gives bits per byte.
"""

import math
import os
import queue
import tempfile
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL", "0") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")

VOCABULARY = 1024
SHARDS = 4
SHARD_TOKENS = 20000 if SMALL else 4000000
HEADER = 256
LENGTH = 32 if SMALL else 1024
ROWS = 4 if SMALL else 24
WIDTH = 32 if SMALL else 768
HEADS = 2 if SMALL else 12
LAYERS = 2 if SMALL else 11
PRINT_EVERY = 10 if SMALL else 100
VALIDATE_EVERY = 20 if SMALL else 1000
TOKENS_PER_BYTE = 0.41


def write_shards(folder):
    """Write shards of tokens that follow each other by a noisy rule."""
    rng = np.random.default_rng(1)
    paths = []
    for number in range(SHARDS):
        jumps = rng.integers(0, 7, SHARD_TOKENS)
        jumps[rng.random(SHARD_TOKENS) < 0.1] = 311
        tokens = (np.cumsum(jumps) * 13 % VOCABULARY).astype(np.uint16)
        header = np.zeros(HEADER, dtype=np.int32)
        header[:3] = 20240520, 1, SHARD_TOKENS
        paths.append(os.path.join(folder, f"train_{number:06d}.bin"))
        with open(paths[-1], "wb") as out:
            out.write(header.tobytes())
            out.write(tokens.tobytes())
    return paths


class TokenStream:
    """Reads the shards one after another, again and again."""

    def __init__(self, paths):
        self.paths, self.number, self.place = paths, 0, 0
        self.tokens = self.load(paths[0])

    def load(self, path):
        header = np.fromfile(path, dtype="<i4", count=HEADER)
        assert header[0] == 20240520 and header[1] == 1
        tokens = np.fromfile(path, dtype="<u2", count=int(header[2]), offset=HEADER * 4)
        return torch.from_numpy(tokens)

    def take(self, count):
        """The next tokens; goes on to the next shard where this one ends."""
        pieces = []
        while count:
            if self.place == len(self.tokens):
                self.number = (self.number + 1) % len(self.paths)
                self.tokens, self.place = self.load(self.paths[self.number]), 0
            size = min(count, len(self.tokens) - self.place)
            pieces.append(self.tokens[self.place : self.place + size])
            self.place += size
            count -= size
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class TokenLoader:
    """Makes batches of inputs and targets on the device."""

    def __init__(self, paths):
        self.stream = TokenStream(paths)

    def on_host(self):
        """One batch of tokens, with the one that follows."""
        local = self.stream.take(ROWS * LENGTH + 1).to(torch.int64)
        return local.pin_memory() if device == "cuda" else local

    def next_batch(self):
        """Inputs and targets of the next batch."""
        local = self.on_host().to(device, non_blocking=True)
        return local[:-1].view(ROWS, LENGTH), local[1:].view(ROWS, LENGTH)


class AheadLoader(TokenLoader):
    """The same batches, made by a thread some batches ahead."""

    def __init__(self, paths, depth=2):
        super().__init__(paths)
        self.ready = queue.Queue(maxsize=depth)
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            self.ready.put(super().on_host())

    def on_host(self):
        return self.ready.get()


class Attention(nn.Module):
    """Causal attention with turned keys and queries."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (y.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for y in self.qkv(x).split(WIDTH, dim=-1))
        y = F.scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def turn(x, cos, sin):
    """Turn pairs of features by the angle of their place."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """Attention and a squared leaky unit."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.down(F.leaky_relu(self.up(self.norm2(x)), 0.5).square())


class LanguageModel(nn.Module):
    """Embedding, blocks, and a head that shares the embedding."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        half = WIDTH // HEADS // 2
        angle = torch.outer(torch.arange(LENGTH), 10000.0 ** -(torch.arange(half) / half))
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(30 * torch.tanh(logits.float() / 30).flatten(0, 1), targets.flatten())


def main():
    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(folder)
        loader = TokenLoader(paths) if VARIANT == "a" else AheadLoader(paths)
        held = [TokenLoader(paths[-1:]).next_batch() for _ in range(2)]
        model = LanguageModel().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 50))
        warm = min(10, STEPS // 2)
        begin = 0.0
        for step in range(STEPS):
            if step == warm:
                if device == "cuda":
                    torch.cuda.synchronize()
                begin = time.perf_counter()
            tokens, targets = loader.next_batch()
            with torch.autocast(device, dtype=torch.bfloat16):
                last = model(tokens, targets)
            optimizer.zero_grad(set_to_none=True)
            last.backward()
            optimizer.step()
            schedule.step()
            if step % PRINT_EVERY == PRINT_EVERY - 1:
                print(f"step {step + 1}/{STEPS} train loss {last.item():.4f}")
            if step % VALIDATE_EVERY == VALIDATE_EVERY - 1:
                with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
                    loss = torch.stack([model(*batch) for batch in held]).mean().item()
                print(f"step {step + 1} bits per byte {loss / math.log(2) * TOKENS_PER_BYTE:.4f}")
        if device == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - begin
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
