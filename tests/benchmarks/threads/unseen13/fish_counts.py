"""Finds kinds of fish from the echoes of a sonar; the optimizer evens out the directions of each update."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 190))
SHOALS, PULSES, BINS, KINDS, BATCH, WIDTH, INNER = 2_000, 24, 64, 12, 16, 144, 1728
ROUNDS = 5


def make_echoes():
    g = torch.Generator().manual_seed(17)
    kind = torch.randint(0, KINDS, (SHOALS,), generator=g)
    shape = torch.randn(KINDS, PULSES, BINS, generator=g)
    return shape[kind] + 1.5 * torch.randn(SHOALS, PULSES, BINS, generator=g), kind


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class EchoNet(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.into = nn.Linear(BINS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(PULSES, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, echoes):
        return self.head(self.blocks(self.into(echoes) + self.places).mean(1))


def even_out(update):
    """Nearly the closest matrix with equal singular values, by a polynomial of degree five."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = update.shape[0] > update.shape[1]
    x = update.T if tall else update
    x = x / (x.norm() + 1e-7)
    if VARIANT == "a":
        for _ in range(ROUNDS):
            square = x @ x.T
            x = a * x + (b * square + c * square @ square) @ x
    else:
        square = x @ x.T
        one = torch.eye(len(square))
        turn = one
        for _ in range(ROUNDS):
            factor = a * one + b * square + c * square @ square
            turn = factor @ turn
            square = factor @ square @ factor
        x = turn @ x
    return x.T if tall else x


class EvenSGD(torch.optim.Optimizer):
    def __init__(self, parameters, lr, momentum=0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["speed"] = torch.zeros_like(p)
                speed = state["speed"].mul_(group["momentum"]).add_(p.grad)
                update = even_out(p.grad.add(speed, alpha=group["momentum"]))
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def main():
    torch.manual_seed(17)
    echoes, kind = make_echoes()
    model = EchoNet()
    inner = [p for p in model.blocks.parameters() if p.ndim == 2]
    known = {id(p) for p in inner}
    optimizers = [
        EvenSGD(inner, lr=0.01),
        torch.optim.AdamW([p for p in model.parameters() if id(p) not in known], lr=1e-3),
    ]
    warm = min(5, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, SHOALS, (BATCH,))
        loss = F.cross_entropy(model(echoes[rows]), kind[rows])
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
