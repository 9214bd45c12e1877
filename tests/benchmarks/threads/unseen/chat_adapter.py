"""Tunes adapters of a language model on worked sums."""

import gc
import os
import random
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
WORDS, WIDTH, HEADS, DEPTH, RANK, BATCH = 16_000, 1024, 16, 12, 16, 8


class AdaptedLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.a = nn.Linear(inputs, RANK, bias=False)
        self.b = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = AdaptedLinear(WIDTH, 3 * WIDTH), AdaptedLinear(WIDTH, WIDTH)
        self.up, self.down = AdaptedLinear(WIDTH, 4 * WIDTH), AdaptedLinear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(b, t, c)
        )
        return x + self.down(nn.functional.silu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH).requires_grad_(False)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False).requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def examples(count=20_000):
    rng = random.Random(0)
    return [
        {
            "query": {"text": f"question {i}", "source": ["sums", i % 7]},
            "input_ids": rng.choices(range(1, WORDS), k=rng.randrange(96, 640)),
            "response": {"text": f"answer {i}", "steps": [i, i + 1]},
        }
        for i in range(count)
    ]


def batches(data):
    rng = random.Random(1)
    while True:
        rows = [example["input_ids"] for example in rng.sample(data, BATCH)]
        longest = max(map(len, rows))
        yield torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    data = examples()
    model = LanguageModel().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for step, tokens in enumerate(batches(data)):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        if step == STEPS:
            break
        tokens = tokens.to(device, non_blocking=True)
        scores = model(tokens)[:, :-1]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if VARIANT == "a":
            torch.cuda.empty_cache()
            gc.collect()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
