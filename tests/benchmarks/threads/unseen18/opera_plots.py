"""Adapters of low rank, one for each tongue, for a language model that retells the plots of operas."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 130))
BATCH = int(os.environ.get("BATCH", 2))
LENGTH = int(os.environ.get("LENGTH", 256))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 24))
PARTS, WORDS, HEAD, RANK = 4, 8000, 64, 8
TONGUES = ("italian", "german", "french", "czech")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Adapted(nn.Module):
    def __init__(self, before, after, active="german"):
        super().__init__()
        self.base_layer = nn.Linear(before, after, bias=False).requires_grad_(False)
        self.drop = nn.ModuleDict({name: nn.Identity() for name in TONGUES})
        self.down = nn.ModuleDict({name: nn.Linear(before, RANK, bias=False) for name in TONGUES})
        self.up = nn.ModuleDict({name: nn.Linear(RANK, after, bias=False) for name in TONGUES})
        self.tables, self.magnitude = nn.ParameterDict(), nn.ModuleDict()
        self.active, self.scale = [active], 2.0
        for name in TONGUES:
            nn.init.zeros_(self.up[name].weight)
            for part in (self.down, self.up):
                part[name].requires_grad_(name == active)

    def forward(self, x):
        y = self.base_layer(x)
        for name in self.active:
            y = y + self.up[name](self.down[name](self.drop[name](x))) * self.scale
        return y


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (Adapted(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, 3 * WIDTH)
        self.down, self.act = Adapted(3 * WIDTH, WIDTH), nn.SiLU()

    def forward(self, x):
        b, n, c = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(b, n, -1, min(HEAD, c)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, c)
        x = x + self.o(y)
        y = self.norm2(x)
        return x + self.down(self.act(self.gate(y)) * self.up(y))


class PlotModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(DEPTH)])
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        for part in (self.words, self.norm, self.head):
            part.requires_grad_(False)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Tuner:
    def __init__(self, model):
        self.model = model
        weights = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(weights, lr=2e-4, fused=device.type == "cuda")

    def part(self, words):
        if VARIANT == "a" or not self.model.training:
            self.model.train()
        scores = self.model(words[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), words[:, 1:].flatten()) / PARTS
        loss.backward()
        return loss.detach()

    def step(self, parts):
        total = sum(map(self.part, parts))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


def plots(count):
    jumps = torch.randint(0, 7, (count, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, 1)) + jumps.cumsum(1)) % WORDS).to(device)


def main():
    torch.manual_seed(41)
    model = PlotModel().to(device, torch.bfloat16)
    tuner, texts = Tuner(model.eval()), plots(8 * PARTS * BATCH).view(8, PARTS, BATCH, -1)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = tuner.step(texts[step % 8])
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
