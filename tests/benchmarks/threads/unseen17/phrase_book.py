"""Translation of travellers' phrases: a small encoder and decoder over a joint vocabulary."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
BATCH = int(os.environ.get("BATCH", 256))
LENGTH = int(os.environ.get("LENGTH", 64))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 3))
WORDS = int(os.environ.get("WORDS", 44000))
PAD, START = 0, 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Smoothed(nn.Module):
    """Distance from the right words, of which a little is given to all other words."""

    def __init__(self, words, smoothing=0.1):
        super().__init__()
        self.smoothing = smoothing
        self.sure = 1 - smoothing + smoothing / words
        self.register_buffer("spread", torch.full((1, words), smoothing / words))

    def forward(self, scores, words):
        if VARIANT == "a":
            logps = F.log_softmax(scores, dim=-1)
            wanted = self.spread.repeat(len(words), 1)
            wanted.scatter_(1, words.unsqueeze(1), self.sure)
            wanted.masked_fill_((words == PAD).unsqueeze(1), 0)
            total = F.kl_div(logps, wanted, reduction="sum")
        else:
            total = F.cross_entropy(
                scores, words, ignore_index=PAD, reduction="sum", label_smoothing=self.smoothing
            )
        return total / (words != PAD).sum()


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        nn.init.normal_(self.words.weight, std=WIDTH**-0.5)
        self.body = nn.Transformer(
            WIDTH,
            WIDTH // 64,
            DEPTH,
            DEPTH,
            4 * WIDTH,
            dropout=0.0,
            batch_first=True,
        )
        later = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("later", later)

    def embed(self, tokens):
        return self.words(tokens) * WIDTH**0.5 + self.place.weight

    def forward(self, theirs, ours):
        x = self.body(self.embed(theirs), self.embed(ours), tgt_mask=self.later, tgt_is_causal=True)
        return F.linear(x, self.words.weight)


def phrases(count):
    """Sentences of a language and the same in another, which shifts each word."""
    theirs = torch.randint(2, WORDS, (count, LENGTH))
    ours = (theirs * 7 + 3) % (WORDS - 2) + 2
    length = torch.randint(LENGTH // 2, LENGTH + 1, (count, 1))
    over = torch.arange(LENGTH) >= length
    theirs, ours = theirs.masked_fill(over, PAD), ours.masked_fill(over, PAD)
    begun = torch.cat([torch.full((count, 1), START), ours[:, :-1]], 1)
    return theirs.to(device), begun.to(device), ours.to(device)


def main():
    torch.manual_seed(83)
    model, distance = Translator().to(device), Smoothed(WORDS).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    book = phrases(16 * BATCH)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        part = slice(step % 16 * BATCH, (step % 16 + 1) * BATCH)
        theirs, begun, ours = (x[part] for x in book)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(theirs, begun)
        loss = distance(scores.flatten(0, 1).float(), ours.flatten())
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
