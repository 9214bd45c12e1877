"""Train a small language model on invented chronicles; every second layer looks back a short way."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "400"))
WARM = min(10, STEPS // 2)
WORDS = 600
CHRONICLE = 60000
LENGTH = 256
BLOCK = 64
WIDTH = 160
HEADS = 4
LAYERS = 4
BATCH = 3


def look_back(x, value):
    blocks = x.view(x.shape[0], LENGTH // BLOCK, BLOCK, *x.shape[2:])
    before = F.pad(blocks, (0, 0) * (x.dim() - 1) + (1, 0), value=value)[:, :-1]
    return torch.cat([before, blocks], 2)


def window_mask(present):
    place = torch.arange(LENGTH).repeat(len(present), 1)
    query = place.view(len(present), LENGTH // BLOCK, BLOCK)
    key = look_back(place, value=-1)
    seen = look_back(present, value=0)
    distance = query.unsqueeze(-1) - key.unsqueeze(-2)
    return ((distance >= 0) & (distance < BLOCK) & (seen > 0).unsqueeze(-2)).unsqueeze(2)


class WideLook(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("causal", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())

    def forward(self, x, present, mask):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        score = score.masked_fill(~self.causal, -1e9)
        return self.out((score.softmax(-1) @ v).transpose(1, 2).flatten(2))


class NearLook(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, present, mask):
        if mask is None:
            mask = window_mask(present)
        q, k, v = self.qkv(x).chunk(3, -1)
        q = q.view(len(x), LENGTH // BLOCK, BLOCK, HEADS, -1).transpose(2, 3)
        k = look_back(k, 0.0).unflatten(-1, (HEADS, -1)).transpose(2, 3)
        v = look_back(v, 0.0).unflatten(-1, (HEADS, -1)).transpose(2, 3)
        score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        score = score.masked_fill(~mask, -1e9)
        return self.out((score.softmax(-1) @ v).transpose(2, 3).reshape(len(x), LENGTH, WIDTH))


class ChronicleLayer(nn.Module):
    def __init__(self, near):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.look = NearLook() if near else WideLook()
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, present, mask):
        x = x + self.look(self.first(x), present, mask)
        return x + self.think(self.second(x))


class ChronicleModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([ChronicleLayer(k % 2 == 1) for k in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, text, present):
        x = self.word(text) + self.place.weight
        mask = None if VARIANT == "a" else window_mask(present)
        for layer in self.layers:
            x = layer(x, present, mask)
        return self.head(self.norm(x))


def write_chronicle(generator):
    follow = torch.randint(0, WORDS, (WORDS, 4), generator=generator).tolist()
    words = [0]
    for pick in torch.randint(0, 4, (CHRONICLE,), generator=generator).tolist():
        words.append(follow[words[-1]][pick])
    return torch.tensor(words)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    chronicle = write_chronicle(generator)
    model = ChronicleModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    span = torch.arange(LENGTH + 1)
    present = torch.ones(BATCH, LENGTH, dtype=torch.long)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        begin = torch.randint(0, CHRONICLE - LENGTH, (BATCH, 1), generator=generator)
        words = chronicle[begin + span]
        logits = model(words[:, :-1], present)
        loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{spent / (STEPS - WARM) * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
