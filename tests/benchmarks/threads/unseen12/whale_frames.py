"""Calls of whales, frame by frame, in recordings of many lengths."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 600))
BATCH = int(os.environ.get("BATCH", 48))
LONGEST = int(os.environ.get("LONGEST", 600))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 8))
BANDS, CALLS = 80, 2000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    """Half a feed-forward net, attention, a convolution over time."""

    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.glu = nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.after = nn.Linear(width, width)

    def forward(self, x, keys):
        b, n, c = x.shape
        x = x + 0.5 * self.mlp(self.norms[0](x))
        q, k, v = self.qkv(self.norms[1](x)).view(b, n, 3, 8, c // 8).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, keys).transpose(1, 2).reshape(b, n, c))
        y = F.glu(self.glu(self.norms[2](x)), -1)
        return x + self.after(F.silu(self.conv(y.transpose(1, 2)).transpose(1, 2)))


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(BANDS, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, CALLS)

    def forward(self, frames, heard, lengths):
        x, keys = self.inward(frames), heard[:, None, None]
        for layer in self.layers:
            x = layer(x, keys)
        return self.head(pack(x, heard, lengths))


def pack(x, heard, lengths):
    """The frames that were heard, of all recordings, one after the other."""
    if VARIANT == "a":
        return x[heard]
    order = torch.argsort(heard.flatten().to(torch.int8), stable=True, descending=True)
    return x.flatten(0, 1).index_select(0, order[: sum(lengths)])


def recordings():
    lengths = torch.randint(LONGEST // 2, LONGEST + 1, (BATCH,))
    lengths[0] = LONGEST
    calls = torch.randint(0, CALLS, (BATCH, LONGEST // 10 + 1)).repeat_interleave(10, 1)[:, :LONGEST]
    frames = torch.randn(BATCH, LONGEST, BANDS) + torch.sin(calls[..., None] * torch.arange(BANDS) * 0.01)
    heard = torch.arange(LONGEST) < lengths[:, None]
    return frames.to(device), heard.to(device), calls.to(device), lengths.tolist()


def main():
    torch.manual_seed(13)
    model = Listener().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    batches = [recordings() for _ in range(6)]
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        frames, heard, calls, lengths = batches[step % 6]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(frames, heard, lengths)
            wanted = pack(calls[..., None], heard, lengths)[:, 0]
        loss = F.cross_entropy(scores.float(), wanted)
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
