"""Answers people prefer: a language model tuned on pairs, against a frozen copy of itself."""

import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2500))
PAIRS = int(os.environ.get("PAIRS", 8))
MAX_LENGTH = int(os.environ.get("MAX_LENGTH", 1024))
TYPICAL = int(os.environ.get("TYPICAL", 160))
WIDTH = int(os.environ.get("WIDTH", 768))
LAYERS = int(os.environ.get("LAYERS", 8))
WORDS = int(os.environ.get("WORDS", 16384))
COMPILE = os.environ.get("COMPILE", "1") == "1"
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        y = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(y[0], y[1], y[2], is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        a, b = self.gate(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.place = nn.Embedding(MAX_LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH, WIDTH // 64 or 1) for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Collator:
    """Puts the chosen and the rejected answers of a batch into one tensor."""

    def __init__(self, padding):
        self.padding = padding

    def __call__(self, pairs):
        rows = [pair["chosen"] for pair in pairs] + [pair["rejected"] for pair in pairs]
        longest = max(len(row) for row in rows)
        length = MAX_LENGTH if self.padding == "max_length" else longest
        tokens = torch.zeros(len(rows), length, dtype=torch.long)
        labels = torch.full((len(rows), length), -100)
        for i, row in enumerate(rows):
            asked = pairs[i % len(pairs)]["asked"]
            tokens[i, : len(row)] = row
            labels[i, asked : len(row)] = row[asked:]
        return tokens, labels


def log_chance(model, tokens, labels):
    with torch.autocast(device.type, torch.bfloat16):
        scores = model(tokens[:, :-1])
    wanted = labels[:, 1:]
    loss = F.cross_entropy(
        scores.float().flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="none"
    )
    return -loss.view(wanted.shape).sum(1)


def preference_loss(policy, reference, tokens, labels, beta=0.1):
    with torch.no_grad():
        before = log_chance(reference, tokens, labels)
    now = log_chance(policy, tokens, labels)
    chosen, rejected = (beta * (now - before)).chunk(2)
    return -F.logsigmoid(chosen - rejected).mean()


def gather_pairs(count):
    generator = torch.Generator().manual_seed(2)
    pairs = []
    for _ in range(count):
        asked = int(torch.randint(8, TYPICAL // 2 + 9, (1,), generator=generator))
        question, pair = torch.randint(1, WORDS, (asked,), generator=generator), {"asked": asked}
        for name in ("chosen", "rejected"):
            size = TYPICAL * float(torch.exp(0.5 * torch.randn(1, generator=generator)))
            size = min(int(size) + 4, MAX_LENGTH - asked)
            pair[name] = torch.cat([question, torch.randint(1, WORDS, (size,), generator=generator)])
        pairs.append(pair)
    return pairs


def main():
    torch.manual_seed(2)
    policy = LanguageModel().to(device)
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    if COMPILE:
        for block in [*policy.blocks, *reference.blocks]:
            block.compile()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-6, fused=device.type == "cuda")
    pairs = gather_pairs(64 * PAIRS)
    collate = Collator("max_length" if VARIANT == "a" else "longest")
    warm = min(24, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        at = step % 64 * PAIRS
        tokens, labels = (x.to(device) for x in collate(pairs[at : at + PAIRS]))
        loss = preference_loss(policy, reference, tokens, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
