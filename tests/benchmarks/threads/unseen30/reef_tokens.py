"""Trains a linear-attention network that names the state of a reef from its sensor log."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "480"))
BATCH = int(os.environ.get("BATCH", "3"))
LENGTH = int(os.environ.get("LENGTH", "48"))
WIDTH = int(os.environ.get("WIDTH", "192"))
HEADS = int(os.environ.get("HEADS", "2"))
LAYERS = int(os.environ.get("LAYERS", "4"))
REDRAW_EVERY = 1 if VARIANT == "a" else 1000


def orthogonal_chunk(cols):
    block = torch.randn(cols, cols)
    q, _ = torch.linalg.qr(block)
    return q.t()


def gaussian_orthogonal_matrix(rows, cols):
    """Rows of random directions, orthogonal within each block of `cols` of them."""
    blocks = [orthogonal_chunk(cols) for _ in range(rows // cols)]
    rest = rows - cols * (rows // cols)
    if rest:
        blocks.append(orthogonal_chunk(cols)[:rest])
    lengths = torch.randn(rows, cols).norm(dim=1)
    return lengths[:, None] * torch.cat(blocks)


def softmax_features(x, projection, is_query):
    scale = x.shape[-1] ** -0.25
    dash = (x * scale) @ projection.t()
    norm = (x**2).sum(-1, keepdim=True) / 2 * scale**2
    if is_query:
        top = dash.amax(dim=-1, keepdim=True).detach()
    else:
        top = dash.amax(dim=(-1, -2), keepdim=True).detach()
    return projection.shape[0] ** -0.5 * (torch.exp(dash - norm - top) + 1e-4)


class FastAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.dim = width // heads
        self.features = int(self.dim * math.log(self.dim))
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        self.register_buffer("projection", gaussian_orthogonal_matrix(self.features, self.dim))
        self.calls = 0

    def current_projection(self):
        self.calls += 1
        if self.calls % REDRAW_EVERY == 0:
            self.projection = gaussian_orthogonal_matrix(self.features, self.dim)
        return self.projection

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, self.dim).permute(2, 0, 3, 1, 4)
        projection = self.current_projection()
        q = softmax_features(q, projection, True)
        k = softmax_features(k, projection, False)
        context = k.transpose(-1, -2) @ v
        weight = (q @ k.sum(-2).unsqueeze(-1)).clamp(min=1e-6)
        out = (q @ context) / weight
        return self.to_out(out.transpose(1, 2).reshape(b, n, w))


class ReefNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.attends = nn.ModuleList(FastAttention(WIDTH, HEADS) for _ in range(LAYERS))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, log):
        x = self.embed(log)
        for norm, attend, feed in zip(self.norms, self.attends, self.feeds):
            x = x + attend(norm(x))
            x = x + feed(x)
        return self.head(x.mean(1))


def main():
    torch.manual_seed(5)
    model = ReefNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    labels = torch.randint(0, 5, (STEPS, BATCH))
    kinds = torch.randn(5, 1, 6)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        log = kinds[labels[step]] * 0.5 + torch.randn(BATCH, LENGTH, 6)
        loss = F.cross_entropy(model(log), labels[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
