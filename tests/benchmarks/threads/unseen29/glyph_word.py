"""Learns the vector of one new word, with which a frozen network draws a glyph that it has not seen."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
BATCH, TOKENS = int(os.environ.get("BATCH", 16)), int(os.environ.get("TOKENS", 1024))
WIDTH, DEPTH = int(os.environ.get("WIDTH", 1280)), int(os.environ.get("DEPTH", 12))
WORDS, TEXT = int(os.environ.get("WORDS", 49408)), int(os.environ.get("TEXT", 1024))
TEXT_DEPTH = int(os.environ.get("TEXT_DEPTH", 6))
LENGTH, CHANNELS, NEW_WORD = 77, 4, WORDS - 1


class Attention(nn.Module):
    def __init__(self, width, context):
        super().__init__()
        self.heads = max(1, width // 64)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(context, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, context):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(context).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, context=None):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = Attention(width, width)
        self.other = Attention(width, context) if context else None
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, context=None):
        y = self.norms[0](x)
        x = x + self.own(y, y)
        if self.other is not None:
            x = x + self.other(self.norms[1](x), context)
        return x + self.mlp(self.norms[2](x))


class GlyphPainter(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(CHANNELS, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH, TEXT) for _ in range(DEPTH))
        self.leave = nn.Linear(WIDTH, CHANNELS)

    def forward(self, x, context):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, context)
        return self.leave(x)


class WordTable(nn.Module):
    """All vectors; after an update those of the known words are put back."""

    def __init__(self, device):
        super().__init__()
        self.words = nn.Embedding(WORDS, TEXT, device=device)
        self.before = self.words.weight.detach().clone()
        self.others = torch.arange(WORDS, device=device) != NEW_WORD

    def forward(self, caption):
        return self.words(caption)

    @torch.no_grad()
    def put_back(self):
        self.words.weight[self.others] = self.before[self.others]


class WordVector(nn.Module):
    """The new vector by itself, put among the known ones."""

    def __init__(self, device):
        super().__init__()
        self.register_buffer("before", torch.randn(WORDS, TEXT, device=device))
        self.vector = nn.Parameter(self.before[NEW_WORD].clone())

    def forward(self, caption):
        return torch.where((caption == NEW_WORD)[..., None], self.vector, F.embedding(caption, self.before))

    def put_back(self):
        pass


def main():
    torch.manual_seed(37)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    encoder = nn.Sequential(*[Layer(TEXT) for _ in range(TEXT_DEPTH)])
    encoder = encoder.to(device, dtype).requires_grad_(False)
    painter = GlyphPainter().to(device, dtype).requires_grad_(False)
    words = (WordTable if VARIANT == "a" else WordVector)(device)
    optimizer = torch.optim.AdamW(words.parameters(), lr=5e-3, fused=cuda)
    captions = torch.randint(0, NEW_WORD, (32, BATCH, LENGTH), device=device)
    captions[..., 5] = NEW_WORD
    glyphs = torch.randn(32, BATCH, TOKENS, CHANNELS, device=device)

    sync = torch.cuda.synchronize if cuda else time.perf_counter
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            sync()
            start = time.perf_counter()
        caption, glyph = captions[step % 32], glyphs[step % 32]
        noise = torch.randn_like(glyph)
        guess = painter((0.6 * glyph + 0.8 * noise).to(dtype), encoder(words(caption).to(dtype)))
        loss = F.mse_loss(guess.float(), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        words.put_back()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
