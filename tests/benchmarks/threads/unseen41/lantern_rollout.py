"""Supervised fine-tuning of a small decoder on tool-use dialogues, packed into rows of equal length."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 140))
BATCH = int(os.environ.get("BATCH", 32))
ROW = int(os.environ.get("ROW", 2048))
DIM = int(os.environ.get("DIM", 768))
LAYERS = int(os.environ.get("LAYERS", 6))
VOCAB = int(os.environ.get("VOCAB", 16384))
LONGEST = int(os.environ.get("LONGEST", 1000))
PAD = 0
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def read_dialogues(count):
    rng, dialogues = np.random.default_rng(7), []
    for _ in range(count):
        n = int(rng.integers(LONGEST // 4, LONGEST))
        answer = int(rng.integers(n // 3, n - 1))
        dialogues.append(
            {
                "input_ids": rng.integers(1, VOCAB, n).tolist(),
                "num_actions": answer,
                "loss_mask": [1] * answer,
            }
        )
    return dialogues


def fill_bins(lengths, capacity):
    bins, room = [], []
    for i in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        for b in range(len(bins)):
            if room[b] >= lengths[i]:
                bins[b].append(i)
                room[b] -= lengths[i]
                break
        else:
            bins.append([i])
            room.append(capacity - lengths[i])
    return bins


class PackedCollator:
    def __init__(self, capacity):
        self.capacity = capacity

    def __call__(self, examples):
        lengths = [len(ex["input_ids"]) for ex in examples]
        masks = [[0] * (n - ex["num_actions"]) + list(ex["loss_mask"]) for n, ex in zip(lengths, examples)]
        bins = fill_bins(lengths, self.capacity)
        tokens = torch.full((len(bins), self.capacity), PAD, dtype=torch.long)
        places = torch.zeros((len(bins), self.capacity), dtype=torch.long)
        loss_mask = torch.zeros((len(bins), self.capacity - 1))
        for row, members in enumerate(bins):
            start = 0
            for i in members:
                n = lengths[i]
                tokens[row, start : start + n] = torch.tensor(examples[i]["input_ids"], dtype=torch.long)
                places[row, start : start + n] = torch.arange(n)
                full = masks[i]
                if VARIANT == "a":
                    for p in range(n - 1):
                        target = full[p + 1]
                        if start + p < self.capacity - 1:
                            loss_mask[row, start + p] = float(target)
                else:
                    end = min(start + n - 1, self.capacity - 1)
                    loss_mask[row, start:end] = torch.tensor(full[1 : 1 + end - start])
                start += n
        return tokens, places, loss_mask / loss_mask.sum().clamp(min=1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, DIM // 64, 64).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(ROW, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens, places):
        x = self.tok(tokens) + self.pos(places)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


dialogues = read_dialogues(512)
order = np.random.default_rng(1)
collate = PackedCollator(ROW)
model = Decoder().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device == "cuda")
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    picked = [dialogues[i] for i in order.choice(len(dialogues), BATCH, replace=False)]
    tokens, places, weight = [t.to(device) for t in collate(picked)]
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = model(tokens, places)
    nll = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    loss = (nll.float() * weight.flatten()).sum()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - t0
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
