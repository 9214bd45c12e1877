"""Masked letters of enzymes: a language model of proteins learns to fill the gaps."""

import os
import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 300))
BATCH = int(os.environ.get("BATCH", 96))
LENGTH = int(os.environ.get("LENGTH", 256))
WIDTH = int(os.environ.get("WIDTH", 640))
DEPTH = int(os.environ.get("DEPTH", 6))
LETTERS = "LAGVSERTIDPKQNFYMHWCXBUZO.-"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ProteinTokenizer:
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

    def __init__(self):
        self.cls_token, self.pad_token, self.eos_token = "<cls>", "<pad>", "<eos>"
        self.unk_token, self.mask_token = "<unk>", "<mask>"
        tokens = ["<cls>", "<pad>", "<eos>", "<unk>", *LETTERS, "<mask>"]
        self.numbers = {token: n for n, token in enumerate(tokens)}

    @property
    def special_tokens(self):
        return list(
            dict.fromkeys(str(getattr(self, name)) for name in self.names if getattr(self, name, None))
        )

    @property
    def special_ids(self):
        return [self.numbers.get(token, self.numbers["<unk>"]) for token in self.special_tokens]

    def __len__(self):
        return len(self.numbers)

    def encode(self, protein):
        return [0, *map(self.numbers.__getitem__, protein), 2]

    def special_mask(self, ids):
        """1 where a token is none of a protein's letters."""
        if VARIANT == "b":
            special = set(self.special_ids)
            return [1 if token in special else 0 for token in ids]
        return [1 if token in self.special_ids else 0 for token in ids]


class Enzymes(Dataset):
    def __init__(self, tokenizer, count=20000):
        draw = random.Random(3)
        weights = [1 / (n + 4) for n in range(len(LETTERS))]
        pool = "".join(draw.choices(LETTERS, weights, k=200000))
        starts = [draw.randrange(len(pool) - LENGTH) for _ in range(count)]
        self.rows = [
            tokenizer.encode(pool[s : s + draw.randint(4 * LENGTH // 5, LENGTH - 2)]) for s in starts
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class MaskingCollator:
    def __init__(self, tokenizer, share=0.15):
        self.tokenizer, self.share = tokenizer, share

    def __call__(self, rows):
        pad, mask = self.tokenizer.numbers["<pad>"], self.tokenizer.numbers["<mask>"]
        rows = [row + [pad] * (LENGTH - len(row)) for row in rows]
        tokens, labels = torch.tensor(rows), torch.tensor(rows)
        special = torch.tensor([self.tokenizer.special_mask(row) for row in rows], dtype=torch.bool)
        chosen = torch.bernoulli(torch.full(labels.shape, self.share).masked_fill(special, 0)).bool()
        labels[~chosen] = -100
        hidden = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & chosen
        tokens[hidden] = mask
        return tokens, labels


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class ProteinModel(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.letters, self.place = nn.Embedding(count, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*[Layer(WIDTH) for _ in range(DEPTH)], nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, count)

    def forward(self, tokens):
        return self.head(self.layers(self.letters(tokens) + self.place.weight))


def main():
    torch.manual_seed(83)
    tokenizer = ProteinTokenizer()
    loader = DataLoader(
        Enzymes(tokenizer), BATCH, shuffle=True, drop_last=True, collate_fn=MaskingCollator(tokenizer)
    )
    model = ProteinModel(len(tokenizer)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    warm, step = min(15, STEPS // 2), 0
    while step < STEPS:
        for tokens, labels in loader:
            if step == warm:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
            tokens, labels = tokens.to(device), labels.to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                scores = model(tokens)
            loss = F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
