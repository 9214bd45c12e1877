"""A language model of stories whose heroes are new: words are added to its vocabulary while it trains."""

import os
import time

import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
BATCH = int(os.environ.get("BATCH", 24))
LENGTH = int(os.environ.get("LENGTH", 512))
NARROW = int(os.environ.get("NARROW", 256))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 10))
KNOWN, NEW = 6000, 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, -1, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class StoryModel(nn.Module):
    """Narrow words, wide layers; the rows of the table beyond `used` wait for new words."""

    def __init__(self, room):
        super().__init__()
        self.used = KNOWN
        self.words = nn.Embedding(room, NARROW)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.widen = nn.Linear(NARROW, WIDTH)
        self.layers = nn.Sequential(*[Layer(WIDTH) for _ in range(DEPTH)])
        self.narrow = nn.Linear(WIDTH, NARROW)

    def forward(self, tokens):
        x = self.widen(self.words(tokens)) + self.place.weight
        return self.narrow(self.layers(x)) @ self.words.weight[:KNOWN].T

    @torch.no_grad()
    def add_words(self, count):
        """New words begin as draws from the distribution of the known ones."""
        known = self.words.weight[: self.used].float()
        mean = known.mean(0)
        spread = (known - mean).T @ (known - mean) / len(known)
        first = self.used
        self.used = min(self.used + count, len(self.words.weight))
        if self.is_positive(spread):
            drawn = MultivariateNormal(mean, covariance_matrix=1e-3 * spread, validate_args=False)
            self.words.weight[first : self.used] = drawn.sample((self.used - first,))
        else:
            self.words.weight[first : self.used] = mean

    @staticmethod
    def is_positive(matrix):
        if VARIANT == "b":
            return bool((torch.linalg.eigvalsh(matrix) > 0).all())
        values = torch.linalg.eigvals(matrix)
        return bool(((values.real > 0) & (values.imag.abs() < 1e-3)).all())


def stories(count):
    steps = torch.randint(0, 9, (count, BATCH, LENGTH + 1))
    return ((torch.randint(0, KNOWN, (count, 1, 1)) + steps.cumsum(-1)) % KNOWN).to(device)


def main():
    torch.manual_seed(37)
    model = StoryModel(KNOWN + NEW * STEPS).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    shelf = stories(8)
    heroes = torch.rand(8, BATCH, LENGTH, device=device) < 0.01
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        model.add_words(NEW)
        tokens, wanted = shelf[step % 8, :, :-1], shelf[step % 8, :, 1:]
        tokens = torch.where(heroes[step % 8], model.used - 1 - tokens % NEW, tokens)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(tokens)
        loss = F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())
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
