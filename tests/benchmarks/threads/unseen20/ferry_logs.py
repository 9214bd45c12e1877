"""A small language model of ferries' log books, trained by an optimizer that only turns the weights."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
BATCH = int(os.environ.get("BATCH", 32))
LENGTH = int(os.environ.get("LENGTH", 512))
WIDTH = int(os.environ.get("WIDTH", 384))
DEPTH = int(os.environ.get("DEPTH", 36))
WORDS = int(os.environ.get("WORDS", 4096))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SidewaysAdamW(torch.optim.AdamW):
    """AdamW on the part of each gradient that is at right angles to its weight, as long as the whole."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or p.ndim < 1:
                    continue
                self.straighten(p, p.grad)
        return super().step(closure)

    @staticmethod
    def straighten(p, grad):
        w, g = p.view(-1), grad.view(-1)
        proj = torch.dot(w, g) / (torch.dot(w, w) + 1e-30)
        side = g.sub(w, alpha=proj) if VARIANT == "a" else g.sub(w * proj)
        scale = g.norm(2) / (side.norm(2) + 1e-30)
        grad.copy_(side.mul_(scale).view_as(grad))


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


class LogModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*[Layer(WIDTH) for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.words(tokens) + self.place.weight)))


def log_books(count):
    jumps = torch.randint(0, 5, (count, BATCH, LENGTH + 1))
    return ((torch.randint(0, WORDS, (count, BATCH, 1)) + jumps.cumsum(-1)) % WORDS).to(device)


def main():
    torch.manual_seed(59)
    model = LogModel().to(device)
    optimizer = SidewaysAdamW(model.parameters(), lr=3e-4, weight_decay=0.0, fused=device.type == "cuda")
    books = log_books(8)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        book = books[step % 8]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(book[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), book[:, 1:].flatten())
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
