"""Fine-tunes low-rank adapters of a small writer on letters, with evaluations along the way."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "400"))
LETTERS, WIDTH, HEADS, LAYERS, LENGTH = 90, 160, 4, 4, 96
RANK, BATCH, HELD_BACK = 8, 12, 12
EVAL_STEPS = 25


class LanternLinear(nn.Module):
    def __init__(self, size_in, size_out):
        super().__init__()
        self.base = nn.Linear(size_in, size_out)
        self.base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, size_in) / size_in**0.5)
        self.b = nn.Parameter(torch.zeros(size_out, RANK))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


class LanternBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = LanternLinear(WIDTH, 3 * WIDTH), LanternLinear(WIDTH, WIDTH)
        self.up, self.down = LanternLinear(WIDTH, 4 * WIDTH), LanternLinear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanternWriter(nn.Module):
    def __init__(self):
        super().__init__()
        self.signs, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(LanternBlock() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, rows):
        x = self.signs(rows[:, :-1]) + self.places(torch.arange(rows.shape[1] - 1))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.reshape(-1, LETTERS), rows[:, 1:].reshape(-1))


def write_rows(count):
    rows = torch.empty(count, LENGTH + 1, dtype=torch.long)
    rows[:, 0] = torch.randint(LETTERS, (count,))
    for i in range(LENGTH):
        rows[:, i + 1] = (rows[:, i] * 7 + torch.randint(1, 4, (count,))) % LETTERS
    return rows


@torch.no_grad()
def evaluate(model, rows):
    model.eval()
    losses = [model(part).item() * len(part) for part in rows.split(BATCH)]
    model.train()
    return sum(losses) / len(rows)


def main():
    torch.manual_seed(1)
    train_rows, eval_rows = write_rows(2000), write_rows(HELD_BACK)
    model = LanternWriter()
    learnt = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=1e-3)
    course = []
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = train_rows[torch.randint(len(train_rows), (BATCH,))]
        loss = model(rows)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        if VARIANT == "a" and (step + 1) % EVAL_STEPS == 0:
            course.append((step + 1, evaluate(model, eval_rows)))
    took = time.perf_counter() - start
    course.append((STEPS, evaluate(model, eval_rows)))
    print(f"held back {course[-1][1]:.4f} after {course[-1][0]} steps")
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * took / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
