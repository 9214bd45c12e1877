"""Teaches a small writer of limericks to end its lines on a rhyme."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 100))
VOCABULARY, WIDTH, HEADS, LAYERS = 512, 96, 4, 3
PROMPT, ANSWER, BATCH, EPOCHS = 48, 24, 8, 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, past=None):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if past is not None:
            if past:
                k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
            past[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, past=None):
        x = x + self.attention(self.norm1(x), past)
        return x + self.mlp(self.norm2(x))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(PROMPT + ANSWER, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words, pasts=None, first=0):
        x = self.words(words) + self.places.weight[first : first + words.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, pasts[i] if pasts else None)
        return self.head(x)


@torch.no_grad()
def write(writer, prompts):
    words = prompts
    pasts = [[] for _ in range(LAYERS)] if VARIANT == "b" else None
    for _ in range(ANSWER):
        if pasts and pasts[0]:
            logits = writer(words[:, -1:], pasts, first=words.shape[1] - 1)
        else:
            logits = writer(words, pasts)
        following = torch.multinomial(logits[:, -1].softmax(dim=-1), 1)
        words = torch.cat([words, following], dim=1)
    return words


def log_probs(writer, words):
    scores = writer(words[:, :-1])[:, PROMPT - 1 :].log_softmax(dim=-1)
    return scores.gather(-1, words[:, PROMPT:, None]).squeeze(-1)


def main():
    torch.manual_seed(0)
    writer = Writer()
    optimizer = torch.optim.AdamW(writer.parameters(), lr=1e-4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        prompts = torch.randint(0, VOCABULARY, (BATCH, PROMPT))
        words = write(writer, prompts)
        reward = (words[:, -1] % 7 == words[:, PROMPT] % 7).float()
        advantage = ((reward - reward.mean()) / (reward.std() + 1e-4))[:, None]
        with torch.no_grad():
            old = log_probs(writer, words)
        for _ in range(EPOCHS):
            ratio = (log_probs(writer, words) - old).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}, rhymes {reward.mean().item():.2f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
