"""A language model of rhyming verse, tuned by rewards of its own lines, near a frozen copy."""

import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 170))
ROWS = int(os.environ.get("ROWS", 8))
PROMPT = int(os.environ.get("PROMPT", 192))
ANSWER = int(os.environ.get("ANSWER", 64))
WIDTH = int(os.environ.get("WIDTH", 2048))
DEPTH = int(os.environ.get("DEPTH", 16))
WORDS = int(os.environ.get("WORDS", 32000))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    def __init__(self, width, head=64):
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x):
        b, n, c = x.shape
        parts = self.qkv(self.norm1(x)).view(b, n, 3, c // self.head, self.head)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class Poet(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(PROMPT + ANSWER, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, -ANSWER - 1 : -1]))


def chosen_logps(logits, tokens):
    """Log-probability of each word that was written; one row of scores for each word."""
    if VARIANT == "a":
        found = []
        for row, token in zip(logits, tokens, strict=True):
            logps = F.log_softmax(row, dim=-1)
            found.append(logps.gather(-1, token.unsqueeze(-1)).squeeze(-1))
        return torch.stack(found)
    return F.log_softmax(logits, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def objective(policy, frozen, verses, rewards, beta=0.04):
    words = verses[:, -ANSWER:].flatten()
    logps = chosen_logps(policy(verses).flatten(0, 1), words).float()
    with torch.no_grad():
        before = chosen_logps(frozen(verses).flatten(0, 1), words).float()
    advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    ratio = torch.exp(logps - logps.detach())
    gap = before - logps
    drift = torch.exp(gap) - gap - 1
    return (beta * drift - ratio * advantage.repeat_interleave(ANSWER)).mean()


def write_verses(count):
    steps = torch.randint(0, 6, (count, PROMPT + ANSWER))
    verses = (torch.randint(0, WORDS, (count, 1)) + steps.cumsum(1)) % WORDS
    return verses.to(device), torch.rand(count).to(device)


def main():
    torch.manual_seed(41)
    with device:
        policy = Poet().to(torch.bfloat16)
    frozen = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5, fused=device.type == "cuda")
    verses, rewards = write_verses(16 * ROWS)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        part = slice(step % 16 * ROWS, (step % 16 + 1) * ROWS)
        loss = objective(policy, frozen, verses[part], rewards[part])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.7f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
