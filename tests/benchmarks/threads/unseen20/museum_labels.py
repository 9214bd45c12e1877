"""Parts of speech on the labels of a museum: frozen vectors of all words in one array, then a transformer."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 220))
BATCH = int(os.environ.get("BATCH", 192))
WIDTH = int(os.environ.get("WIDTH", 768))
DEPTH = int(os.environ.get("DEPTH", 8))
LONGEST = int(os.environ.get("LONGEST", 128))
WORDS, VECTOR, TAGS = 20000, 300, 18
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def unflatten(rows, lengths):
    """One piece for each label of the museum."""
    if VARIANT == "b":
        return list(rows.split(lengths))
    pieces, first = [], 0
    for length in lengths:
        pieces.append(rows[first : first + length])
        first += length
    return pieces


class Tagger(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.register_buffer("vectors", vectors)
        self.first = nn.Linear(VECTOR, WIDTH)
        self.place = nn.Embedding(LONGEST, WIDTH)
        options = {"activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, 4 * WIDTH, 0.0, **options)
        self.body = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TAGS)

    def forward(self, words, lengths):
        pieces = unflatten(self.vectors[words], lengths)
        x = pad_sequence(pieces, batch_first=True)
        x = self.first(x) + self.place.weight[: x.shape[1]]
        return self.head(self.body(x))


def labels(count):
    made = []
    for _ in range(count):
        lengths = torch.randint(LONGEST - 28, LONGEST + 1, (BATCH,))
        lengths[0] = LONGEST
        words = torch.randint(0, WORDS, (int(lengths.sum()),))
        tags = (words * 7 // 13) % TAGS
        made.append((words.to(device), tags.to(device), lengths.tolist()))
    return made


def main():
    torch.manual_seed(23)
    model = Tagger(torch.randn(WORDS, VECTOR)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    shelf = labels(8)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        words, tags, lengths = shelf[step % 8]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(words, lengths)
        wanted = pad_sequence(unflatten(tags, lengths), batch_first=True, padding_value=-100)
        loss = F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())
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
