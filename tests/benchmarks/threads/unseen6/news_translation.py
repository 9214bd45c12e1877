"""An encoder and decoder that translate news, in mixed precision, large batches of tokens."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 600))
BATCH = int(os.environ.get("BATCH", 384))
LENGTH = int(os.environ.get("LENGTH", 128))
WIDTH, HEADS, DEPTH, PIECES = 512, 8, 6, 8192
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.both = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, memory, causal=False):
        b, t, _ = x.shape
        q = self.query(x).view(b, t, HEADS, -1).transpose(1, 2)
        k, v = self.both(memory).view(b, memory.shape[1], 2, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))


class Layer(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder
        self.attend = Attention()
        self.cross = Attention() if decoder else None
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3 if decoder else 2)])
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, memory=None):
        y = self.norms[0](x)
        x = x + self.attend(y, y, causal=self.decoder)
        if self.decoder:
            x = x + self.cross(self.norms[2](x), memory)
        return x + self.down(F.relu(self.up(self.norms[1](x))))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(PIECES, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.encoder = nn.ModuleList([Layer(False) for _ in range(DEPTH)])
        self.decoder = nn.ModuleList([Layer(True) for _ in range(DEPTH)])
        self.norm, self.generator = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PIECES, bias=False)

    def forward(self, source, target):
        memory = self.embed(source) + self.places
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embed(target) + self.places
        for layer in self.decoder:
            x = layer(x, memory)
        return self.generator(self.norm(x))


def main():
    torch.manual_seed(0)
    model = Translator().to(device)
    options = {"fused": True} if VARIANT == "b" else {}
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.9, 0.998), **options)
    source = torch.randint(0, PIECES, (4, BATCH, LENGTH), device=device)
    target = torch.randint(0, PIECES, (4, BATCH, LENGTH + 1), device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(source[step % 4], target[step % 4, :, :-1])
        wanted = target[step % 4, :, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=0.1)
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
