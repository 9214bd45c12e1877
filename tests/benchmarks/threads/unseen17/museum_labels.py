"""Labels of a museum's objects, translated: scores only of words that the sentences of the batch may need."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 230))
BATCH = int(os.environ.get("BATCH", 128))
LENGTH = int(os.environ.get("LENGTH", 96))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 6))
WORDS, MEANINGS, FREQUENT = 32000, 3, 500
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Attention(nn.Module):
    def __init__(self, width, head=64):
        super().__init__()
        self.head = min(head, width)
        self.q, self.kv, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def forward(self, x, other, causal=False):
        b, n, c = x.shape
        q = self.q(x).view(b, n, -1, self.head).transpose(1, 2)
        k, v = self.kv(other).view(b, other.shape[1], 2, -1, self.head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    def __init__(self, width, looks):
        super().__init__()
        self.looks = looks
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3 if looks else 2)])
        self.inner = Attention(width)
        self.cross = Attention(width) if looks else None
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x, source=None):
        y = self.norms[0](x)
        x = x + self.inner(y, y, causal=self.looks)
        if self.looks:
            x = x + self.cross(self.norms[1](x), source)
        return x + self.mlp(self.norms[-1](x))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.encoder = nn.ModuleList([Layer(WIDTH, False) for _ in range(DEPTH)])
        self.decoder = nn.ModuleList([Layer(WIDTH, True) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("lexicon", (torch.arange(WORDS)[:, None] + torch.arange(MEANINGS)) % WORDS)
        self.register_buffer("frequent", torch.arange(FREQUENT))

    def possible(self, source):
        """Words that may occur in the translation, each once."""
        words = torch.cat([self.lexicon[source].flatten(), self.frequent])
        if VARIANT == "a":
            return torch.unique(words.cpu()).to(words.device)
        return torch.unique(words)

    def forward(self, source, target):
        words = self.possible(source)
        x = self.source(source) + self.place.weight
        for layer in self.encoder:
            x = layer(x)
        y = self.target(target) + self.place.weight
        for layer in self.decoder:
            y = layer(y, x)
        return F.linear(self.norm(y), self.head.weight[words], self.head.bias[words]), words


def labels(count):
    """The target is the source, word by word, in one of the meanings of each word."""
    common = (WORDS * torch.rand(count, LENGTH + 1) ** 6).long()
    chosen = torch.randint(0, MEANINGS, (count, LENGTH + 1))
    return common.to(device), ((common + chosen) % WORDS).to(device)


def main():
    torch.manual_seed(59)
    model = Translator().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    sources, targets = labels(8 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        source, before, after = sources[rows, 1:], targets[rows, :-1], targets[rows, 1:]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores, words = model(source, before)
        places = torch.searchsorted(words, after.flatten())
        loss = F.cross_entropy(scores.flatten(0, 1).float(), places)
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
