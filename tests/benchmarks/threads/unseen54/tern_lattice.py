"""Train a compiled transformer encoder to restore noisy lattice states."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import tern_axes

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 8 if SMALL else 6500))
WARMUP = 3 if SMALL else 20

device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 32 if SMALL else 512
HEADS = 4 if SMALL else 8
LAYERS = 2 if SMALL else 12
SITES = 16 if SMALL else 256
BATCH = 2 if SMALL else 32
FEATURES = 20

# The module of named axes reads its patterns in Python.
if VARIANT == "a":
    arrange = torch.compiler.disable(tern_axes.arrange)
else:
    arrange = tern_axes.arrange


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.to_q = nn.Linear(WIDTH, WIDTH)
        self.to_k = nn.Linear(WIDTH, WIDTH)
        self.to_v = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        q = arrange(self.to_q(y), "b n (h d) -> b h n d", h=HEADS)
        k = arrange(self.to_k(y), "b n (h d) -> b h n d", h=HEADS)
        v = arrange(self.to_v(y), "b n (h d) -> b h n d", h=HEADS)
        y = F.scaled_dot_product_attention(q, k, v)
        y = arrange(y, "b h n d -> b n (h d)")
        return x + self.out(y)


class GatedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.up(self.norm(x))
        y = arrange(y, "b n (two f) -> two b n f", two=2)
        return x + self.down(F.gelu(y[0]) * y[1])


class Lattice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATURES, WIDTH)
        self.place = nn.Parameter(torch.randn(1, SITES, WIDTH) * 0.02)
        blocks = []
        for _ in range(LAYERS):
            blocks += [Attention(), GatedMlp()]
        self.blocks = nn.ModuleList(blocks)
        self.out = nn.Linear(WIDTH, FEATURES)

    def forward(self, x):
        x = self.inp(x) + self.place
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def clock():
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Lattice().to(device)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device == "cuda")
    states = torch.randn(64, BATCH, SITES, FEATURES, device=device).cumsum(2).tanh()

    begin = clock()
    for step in range(STEPS):
        if step == WARMUP:
            begin = clock()
        clean = states[step % len(states)]
        noisy = clean + 0.3 * torch.randn_like(clean)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.mse_loss(compiled(noisy).float(), clean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 500 == 0:
            print(f"step {step + 1} loss {loss.item():.4f}")
    took = clock() - begin

    print(f"loss {loss.item():.4f}")
    print(f"{took * 1000 / (STEPS - WARMUP):.2f} ms per step")


if __name__ == "__main__":
    main()
