"""Learns to write down radio calls of ferries from their spectra."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
REPORT = 1 if VARIANT == "a" else 20
CALLS, BANDS, FRAMES, BATCH = 300, 40, 400, 12
WORDS = "harbour north pier lantern calling ferry seven two mate over tide pilot buoy wind east dock".split()
LETTERS = " abcdefghijklmnopqrstuvwxyz"


def make_calls():
    """Each letter has a spectrum of its own, held for four frames."""
    g = torch.Generator().manual_seed(6)
    voice = torch.randn(len(LETTERS), BANDS, generator=g)
    sounds = 0.8 * torch.randn(CALLS, FRAMES, BANDS, generator=g)
    texts = []
    for call in range(CALLS):
        picked = torch.randint(0, len(WORDS), (20,), generator=g).tolist()
        text = " ".join(WORDS[i] for i in picked)[: FRAMES // 4]
        spelt = torch.tensor([LETTERS.index(c) for c in text])
        sounds[call, : 4 * len(text)] += voice[spelt].repeat_interleave(4, 0)
        texts.append(text)
    return sounds, texts


class Listener(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(BANDS, width, 5, stride=2, padding=2),
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.GELU(),
        )
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, len(LETTERS) + 1)

    def forward(self, sounds):
        x = self.front(sounds.transpose(1, 2)).transpose(1, 2)
        return self.head(self.lstm(x)[0]).log_softmax(-1)


def spell(scores):
    """Most likely letter of each frame, repetitions and blanks left out."""
    texts = []
    for row in scores.argmax(-1).tolist():
        kept = [a for a, b in zip(row, [0] + row[:-1], strict=True) if a != b and a]
        texts.append("".join(LETTERS[i - 1] for i in kept))
    return texts


def distance(wanted, written):
    row = list(range(len(written) + 1))
    for i, a in enumerate(wanted, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(written, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


def error_rate(scores, texts):
    wrong = sum(distance(text, written) for text, written in zip(texts, spell(scores), strict=True))
    return wrong / sum(len(text) for text in texts)


def main():
    torch.manual_seed(6)
    sounds, texts = make_calls()
    spelt = [torch.tensor([LETTERS.index(c) + 1 for c in text]) for text in texts]
    model = Listener()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    frames = torch.full((BATCH,), FRAMES // 2)
    warm = min(5, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, CALLS, (BATCH,)).tolist()
        scores = model(sounds[rows])
        targets = torch.cat([spelt[i] for i in rows])
        sizes = torch.tensor([len(spelt[i]) for i in rows])
        loss = F.ctc_loss(scores.transpose(0, 1), targets, frames, sizes, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % REPORT == 0:
            errors = error_rate(scores.detach(), [texts[i] for i in rows])
        if step % 40 == 39:
            print(f"{step + 1} loss {loss.item():.4f} letters wrong {errors:.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
