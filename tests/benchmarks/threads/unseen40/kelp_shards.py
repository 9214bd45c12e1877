"""A small language model of kelp genomes; gradients are moved to a flat shard after each backward."""

import functools
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
LAYERS, DIM, HEADS = 8, 64, 4
BASES, LENGTH, BATCH = 68, 64, 4
MICRO = 2


class KelpBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class KelpModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(BASES, DIM)
        self.place = nn.Parameter(torch.zeros(LENGTH, DIM))
        self.blocks = nn.Sequential(*(KelpBlock() for _ in range(LAYERS)))
        self.head = nn.Linear(DIM, BASES)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens) + self.place))


class ShardKeeper:
    """Adds the gradient of each parameter to its part of the shard once it is complete."""

    def __init__(self, module):
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.shard = torch.zeros(sum(p.numel() for p in self.params))
        self.parts = [
            s.view_as(p) for s, p in zip(self.shard.split([p.numel() for p in self.params]), self.params)
        ]
        self.handles = []

    def before_backward(self):
        for p, part in zip(self.params, self.parts):
            node = p.expand_as(p).grad_fn.next_functions[0][0]
            handle = node.register_hook(functools.partial(self.after_grad, p, part))
            self.handles.append((node, handle))

    def after_grad(self, p, part, *unused):
        part.add_(p.grad, alpha=1.0 / MICRO)
        p.grad = None

    def after_backward(self):
        for _, handle in self.handles:
            handle.remove()
        if VARIANT != "a":
            self.handles.clear()

    def give_back(self):
        for p, part in zip(self.params, self.parts):
            p.grad = part


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(4)
    model = KelpModel()
    keeper = ShardKeeper(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    total, begin = 0.0, time.perf_counter()
    for step in range(STEPS):
        keeper.shard.zero_()
        for _ in range(MICRO):
            start = torch.randint(0, BASES, (BATCH, 1), generator=gen)
            tokens = (start + 3 * torch.arange(LENGTH + 1)) % BASES
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            keeper.before_backward()
            loss.backward()
            keeper.after_backward()
            total += loss.item() / MICRO
        keeper.give_back()
        opt.step()
        opt.zero_grad()
        if step + 1 == warm:
            begin = time.perf_counter()
    spent = time.perf_counter() - begin
    print(f"loss {total / STEPS:.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
