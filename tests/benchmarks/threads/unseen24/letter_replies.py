"""A compiled language model tuned on pairs of letters and replies of many lengths."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
BATCH = int(os.environ.get("BATCH", 32))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 8))
SHORTEST, LONGEST = int(os.environ.get("SHORTEST", 260)), int(os.environ.get("LONGEST", 640))
WORDS, HEADS, PAD = 8192, 12, 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ReplyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def letters(count):
    """Token lists; those of a batch are of similar length."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(count):
        longest = 4 * int(torch.randint(SHORTEST // 4, LONGEST // 4 + 1, (1,), generator=generator))
        lengths = torch.randint(longest * 9 // 10, longest + 1, (BATCH,), generator=generator)
        lengths[0] = longest
        start = torch.randint(1, WORDS, (BATCH, 1), generator=generator)
        jumps = torch.randint(0, 6, (BATCH, longest + 1), generator=generator).cumsum(1)
        tokens = (start + jumps) % (WORDS - 1) + 1
        found.append([row[: n + 1] for row, n in zip(tokens, lengths.tolist(), strict=True)])
    return found


def pad_letters(rows):
    longest = max(len(row) for row in rows) - 1
    if VARIANT == "b":
        longest = min(-(-longest // 128) * 128, LONGEST)
    tokens = torch.full((len(rows), longest + 1), PAD)
    for k, row in enumerate(rows):
        tokens[k, : len(row)] = row
    return tokens.to(device)


def main():
    torch.manual_seed(13)
    model = ReplyModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    quick = torch.compile(model, mode="reduce-overhead", dynamic=True)
    batches = [pad_letters(rows) for rows in letters(STEPS)]
    warm = min(30, STEPS // 2)
    for step, tokens in enumerate(batches):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device.type, torch.bfloat16):
            scores = quick(tokens[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
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
