"""Levels of rivers a day ahead, and how sure they are, read from the gauges of two days."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 512))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 5))
VOTES = int(os.environ.get("VOTES", 48))
HOURS, GAUGES, RIVERS, SMALL = 48, 40, 12, 128
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(GAUGES, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(HOURS, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])

    def forward(self, gauges):
        return self.blocks(self.start(gauges) + self.place).mean(1)


class Vote(nn.Module):
    """Mean and spread of the levels, as one of the voters sees them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, SMALL), nn.LayerNorm(SMALL), nn.SiLU(),
            nn.Linear(SMALL, SMALL), nn.LayerNorm(SMALL), nn.SiLU(),
            nn.Linear(SMALL, SMALL), nn.LayerNorm(SMALL), nn.SiLU(),
            nn.Linear(SMALL, 2 * RIVERS),
        )  # fmt: skip

    def forward(self, x):
        mean, spread = self.layers(x).chunk(2, -1)
        return mean, 4 * torch.tanh(spread / 4)


class Council(nn.Module):
    def __init__(self):
        super().__init__()
        self.reader = Reader()
        self.votes = nn.ModuleList([Vote() for _ in range(VOTES)])
        self.together = None
        if VARIANT == "b":
            votes, self.pattern = self.votes, [Vote().to("meta")]
            weights, _ = torch.func.stack_module_state(votes)
            self.names, self.votes = list(weights), None
            self.together = nn.ParameterList([nn.Parameter(w.detach()) for w in weights.values()])

    def forward(self, gauges, days):
        with torch.autocast(days.device.type, dtype=torch.bfloat16, enabled=days.is_cuda):
            x = self.reader(gauges)
        x = torch.cat([x.float()[:, :-2], days], 1)
        if self.together is None:
            answers = [vote(x) for vote in self.votes]
            return torch.stack([mean for mean, _ in answers]), torch.stack([s for _, s in answers])

        def one(weights):
            return torch.func.functional_call(self.pattern[0], weights, (x,))

        return torch.vmap(one)(dict(zip(self.names, self.together, strict=True)))


def main():
    torch.manual_seed(83)
    model = Council().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    torch.manual_seed(84)
    gauges = torch.randn(8 * BATCH, HOURS, GAUGES).cumsum(1).div(4).to(device)
    days = torch.rand(8 * BATCH, 2, device=device)
    levels = gauges[:, -1, :RIVERS] + 0.5 * gauges[:, -6, -RIVERS:]
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        mean, spread = model(gauges[rows], days[rows])
        loss = (((mean - levels[rows]) ** 2 * torch.exp(-spread)) + spread).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
