"""A frozen language model learns the tone of a hotel's front desk through adapters on its linear layers."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 180))
BATCH = int(os.environ.get("BATCH", 8))
LENGTH = int(os.environ.get("LENGTH", 1024))
WIDTH = int(os.environ.get("WIDTH", 2048))
DEPTH = int(os.environ.get("DEPTH", 8))
WORDS = int(os.environ.get("WORDS", 8192))
RANK, HEAD = 16, 128
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Adapted(nn.Module):
    """A frozen layer; its direction moves by a product of thin matrices, its length by one number per output."""

    def __init__(self, before, after, scale=2.0, dropout=0.0):
        super().__init__()
        self.base = nn.Linear(before, after, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, before, dtype=torch.bfloat16) / before**0.5)
        self.up = nn.Parameter(torch.zeros(after, RANK, dtype=torch.bfloat16))
        self.length = nn.Parameter(self.base.weight.float().norm(dim=1).to(torch.bfloat16))
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.scale = scale

    def turned(self, x, result=None):
        """What is to be added to the frozen layer's output."""
        with torch.no_grad():
            weight = self.base.weight + self.scale * (self.up @ self.down)
            norm = torch.linalg.vector_norm(weight, dim=1)
        factor = self.length / norm
        if result is None:
            result = F.linear(x, self.base.weight)
        moved = F.linear(F.linear(x, self.down), self.up)
        return (factor - 1) * result + factor * self.scale * moved

    def forward(self, x):
        result = self.base(x)
        if VARIANT == "b" and isinstance(self.dropout, nn.Identity):
            return result + self.turned(x, result)
        return result + self.turned(self.dropout(x))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = (
            nn.RMSNorm(width, dtype=torch.bfloat16).requires_grad_(False) for _ in range(2)
        )
        self.q, self.k, self.v, self.out = (Adapted(width, width) for _ in range(4))
        self.gate, self.lift = Adapted(width, 11 * width // 4), Adapted(width, 11 * width // 4)
        self.lower = Adapted(11 * width // 4, width)

    def forward(self, x):
        b, n, c = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(b, n, c // HEAD, HEAD).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        y = self.norm2(x)
        return x + self.lower(F.silu(self.gate(y)) * self.lift(y))


class DeskModel(nn.Module):
    def __init__(self):
        super().__init__()
        options = {"dtype": torch.bfloat16}
        self.words = nn.Embedding(WORDS, WIDTH, **options).requires_grad_(False)
        self.place = nn.Embedding(LENGTH, WIDTH, **options).requires_grad_(False)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.RMSNorm(WIDTH, **options).requires_grad_(False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False, **options).requires_grad_(False)

    def forward(self, tokens):
        x = self.words(tokens) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def talks(count):
    jumps = torch.randint(0, 5, (count, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, 1)) + jumps.cumsum(1)) % WORDS).to(device)


def main():
    torch.manual_seed(71)
    with device:
        model = DeskModel()
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=2e-4, fused=device.type == "cuda")
    rows = talks(16 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = rows[step % 16 * BATCH : (step % 16 + 1) * BATCH]
        scores = model(batch[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), batch[:, 1:].flatten())
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
