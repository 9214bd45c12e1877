"""The current of a nanopore from the bases that pass it: short reads, feed-forward transformer blocks."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1500))
BATCH = int(os.environ.get("BATCH", 1024))
BASES = int(os.environ.get("BASES", 16))
STRETCH = int(os.environ.get("STRETCH", 2))
WIDTH = int(os.environ.get("WIDTH", 512))
BLOCKS = int(os.environ.get("BLOCKS", 4))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Attention(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if VARIANT == "a":
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class SignalBlock(nn.Module):
    """Attention, then convolutions in place of the usual feed-forward part."""

    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Conv1d(width, 4 * width, 9, padding=4)
        self.back = nn.Conv1d(4 * width, width, 1)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        y = self.back(F.relu(self.wide(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + y)


class SquiggleNet(nn.Module):
    """Encodes the bases, repeats each one as long as it stays in the pore, decodes the current."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4 * 9, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(BASES * STRETCH, WIDTH))
        self.encoder = nn.Sequential(*[SignalBlock(WIDTH) for _ in range(BLOCKS)])
        self.decoder = nn.Sequential(*[SignalBlock(WIDTH) for _ in range(BLOCKS)])
        self.stay = nn.Linear(WIDTH, 1)
        self.current = nn.Linear(WIDTH, 1)

    def forward(self, words):
        x = self.encoder(self.embed(words) + self.place[:BASES])
        stay = self.stay(x)[..., 0]
        x = x[:, :, None].expand(-1, -1, STRETCH, -1).flatten(1, 2)
        return self.current(self.decoder(x + self.place))[..., 0], stay


def make_reads(count):
    bases = torch.randint(0, 4, (count, BASES + 8))
    words = F.one_hot(bases.unfold(1, 9, 1), 4).flatten(2).float()
    level = (words @ torch.randn(36)).tanh()
    current = level[:, :, None].expand(-1, -1, STRETCH).flatten(1)
    return words, current + 0.1 * torch.randn_like(current), torch.rand(count, BASES)


def main():
    torch.manual_seed(13)
    reads = [x.to(device) for x in make_reads(8 * BATCH)]
    model = SquiggleNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 8 * BATCH, (step % 8 + 1) * BATCH)
        words, current, stay = (x[rows] for x in reads)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            guess, time_in_pore = model(words)
        loss = F.mse_loss(guess.float(), current) + F.l1_loss(time_in_pore.float(), stay)
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
