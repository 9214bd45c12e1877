"""Adapts a frozen language model to the tone of handwritten letters with low-rank updates."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1200"))
BATCH = int(os.environ.get("BATCH", "4"))
LENGTH = int(os.environ.get("LENGTH", "512"))
WIDTH = int(os.environ.get("WIDTH", "1024"))
LAYERS = int(os.environ.get("LAYERS", "24"))
HEADS = int(os.environ.get("HEADS", "16"))
WORDS = int(os.environ.get("WORDS", "8192"))
RANK = 8


class AdaptedQKV(nn.Module):
    """Query, key and value at once; queries and values get a low-rank update."""

    def __init__(self, width, rank, scale=2.0):
        super().__init__()
        self.linear = nn.Linear(width, 3 * width)
        self.down = nn.Parameter(torch.randn(2 * rank, width) * 0.02)
        self.up = nn.Parameter(torch.zeros(2 * width, rank))
        self.rank = rank
        self.scale = scale
        self.columns = [*range(width), *range(2 * width, 3 * width)]
        self.register_buffer("kept", torch.tensor(self.columns), persistent=False)

    def spread(self, update):
        """Puts the update's columns where queries and values are, zeros elsewhere."""
        if VARIANT == "a":
            where = torch.tensor(self.columns, device=update.device)
        else:
            where = self.kept
        full = update.new_zeros(*update.shape[:-1], self.linear.out_features)
        return full.index_copy(-1, where, update)

    def forward(self, x):
        low = F.linear(x, self.down.to(x.dtype))
        up = self.up.to(x.dtype).chunk(2)
        parts = [F.linear(part, weight) for part, weight in zip(low.split(self.rank, dim=-1), up)]
        return self.linear(x) + self.scale * self.spread(torch.cat(parts, dim=-1))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = AdaptedQKV(width, RANK)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class LetterModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LetterModel().to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith(("qkv.down", "qkv.up")))
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            trained.append(parameter)
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=device.type == "cuda")
    letters = torch.randint(WORDS, (16, BATCH, LENGTH + 1), device=device)
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            wait()
            start = time.perf_counter()
        tokens = letters[step % 16]
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wait()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
