"""Masked-language pre-training of a small encoder on a newspaper archive."""

import os
import re
import time
import unicodedata

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 80))
BATCH = int(os.environ.get("BATCH", 64))
LENGTH = int(os.environ.get("LENGTH", 512))
WORDS = int(os.environ.get("WORDS", 5000))
ARTICLES = int(os.environ.get("ARTICLES", 256))
DIM = int(os.environ.get("DIM", 768))
LAYERS = int(os.environ.get("LAYERS", 8))
WORKERS = int(os.environ.get("WORKERS", 8))
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
PAD, UNK, CLS, SEP, MASK = range(5)
SYLLABLES = [a + b + c for a in "bcdfgklmnprstvz" for b in "aeiou" for c in ("", "n", "r", "s", "l", "t")]


class PieceTokenizer:
    def __init__(self):
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + SYLLABLES + ["##" + s for s in SYLLABLES]
        pieces += list(".,;!?")
        self.vocab = {p: i for i, p in enumerate(pieces)}
        self.longest = max(len(s) for s in SYLLABLES)

    def split_word(self, word):
        ids, start = [], 0
        while start < len(word):
            for end in range(min(len(word), start + self.longest), start, -1):
                piece = word[start:end] if start == 0 else "##" + word[start:end]
                if piece in self.vocab:
                    ids.append(self.vocab[piece])
                    start = end
                    break
            else:
                return [UNK]
        return ids

    def clean(self, text):
        kept = [" " if c.isspace() else c for c in text if ord(c) not in (0, 0xFFFD)]
        text = unicodedata.normalize("NFD", "".join(kept).lower())
        return "".join(c for c in text if unicodedata.category(c) != "Mn")

    def __call__(self, text, max_length):
        ids = [CLS]
        for word in re.findall(r"\w+|[^\w\s]", self.clean(text)):
            ids.extend(self.split_word(word))
        ids = ids[: max_length - 1] + [SEP]
        return ids + [PAD] * (max_length - len(ids))


def write_archive(count):
    rng = np.random.default_rng(11)
    lexicon = ["".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(8000)]
    texts = []
    for _ in range(count):
        words = [lexicon[min(int(k), 7999)] for k in rng.zipf(1.3, WORDS) % 8000]
        texts.append(". ".join(" ".join(words[i : i + 12]).capitalize() for i in range(0, WORDS, 12)))
    return texts


class ArchiveDataset(Dataset):
    def __init__(self, texts, tokenizer):
        self.texts, self.tokenizer, self.rows = texts, tokenizer, None
        if VARIANT != "a":
            self.rows = np.asarray([tokenizer(t, LENGTH) for t in texts], dtype=np.int64)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        if self.rows is not None:
            return torch.from_numpy(self.rows[i])
        return torch.tensor(self.tokenizer(self.texts[i], LENGTH))


class Encoder(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, DIM), nn.Embedding(LENGTH, DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, DIM // 64, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, vocab)

    def forward(self, ids):
        return self.head(self.body(self.tok(ids) + self.pos.weight))


def main():
    tokenizer = PieceTokenizer()
    data = ArchiveDataset(write_archive(ARTICLES), tokenizer)
    sampler = RandomSampler(
        data, replacement=True, num_samples=STEPS * BATCH, generator=torch.Generator().manual_seed(2)
    )
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=WORKERS, pin_memory=device == "cuda")
    model = Encoder(len(tokenizer.vocab)).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    warm = min(10, STEPS // 2)
    for step, ids in enumerate(loader):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        ids = ids.to(device, non_blocking=True)
        chosen = (torch.rand(ids.shape, device=device) < 0.15) & (ids > MASK)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ids.masked_fill(chosen, MASK))
        nll = F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten(), reduction="none")
        loss = (nll * chosen.flatten()).sum() / chosen.sum().clamp(min=1)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - t0
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
