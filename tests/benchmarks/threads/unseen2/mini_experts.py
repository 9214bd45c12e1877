"""A small language model whose tokens are sent to experts."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
TOKENS, WIDTH, HEADS, LAYERS, EXPERTS, TOP, BATCH, LENGTH = 6400, 512, 8, 8, 8, 2, 16, 256


class MOEFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 1024), nn.SiLU(), nn.Linear(1024, WIDTH)) for _ in range(EXPERTS)
        )

    def by_position(self, x, weight, index, y):
        order = index.flatten().argsort()
        counts = index.flatten().bincount(minlength=EXPERTS).tolist()
        weight = weight.flatten()[order, None]
        rows = order // TOP
        for expert, part, share in zip(self.experts, rows.split(counts), weight.split(counts), strict=True):
            y.index_add_(0, part, (expert(x[part]) * share).to(y.dtype))
        return y

    def forward(self, x):
        flat = x.flatten(0, 1)
        weight, index = self.gate(flat).softmax(-1).topk(TOP, -1)
        y = torch.zeros_like(flat)
        if VARIANT == "b":
            return self.by_position(flat, weight, index, y).view_as(x)
        for i, expert in enumerate(self.experts):
            mask = index == i
            if mask.any():
                rows = mask.any(dim=-1).nonzero().flatten()
                share = weight[mask].view(-1, 1)
                y.index_add_(0, rows, (expert(flat[rows]) * share).to(y.dtype))
        return y.view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = MOEFeedForward()

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    body = nn.Sequential(nn.Embedding(TOKENS, WIDTH), *(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
    model = nn.Sequential(body, nn.Linear(WIDTH, TOKENS)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    text = torch.randint(0, TOKENS, (64, BATCH, LENGTH + 1), device=device)
    for step in range(STEPS):
        if step == 15:
            torch.cuda.synchronize()
            start = time.perf_counter()
        tokens = text[step % 64]
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(tokens[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 15):.2f} ms per step")


if __name__ == "__main__":
    main()
