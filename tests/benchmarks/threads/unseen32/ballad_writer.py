"""Tunes a writer of ballads by reinforcement: it sings on from an opening and is paid for its words."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "480"))
SONGS = int(os.environ.get("SONGS", "16"))
OPENING = int(os.environ.get("OPENING", "48"))
VERSE = int(os.environ.get("VERSE", "40"))
WORDS = int(os.environ.get("WORDS", "4000"))
WIDTH = int(os.environ.get("WIDTH", "1024"))
NGRAM = int(os.environ.get("NGRAM", "2"))

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.memory = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, state=None):
        x, state = self.memory(self.words(tokens), state)
        return self.out(self.norm(x + self.mix(x))), state


def bar_repeats(tokens, lprobs):
    """Gives words that would complete an n-gram sung before a probability of nought."""
    length = tokens.shape[1]
    if length < NGRAM:
        return lprobs
    if VARIANT == "a":
        barred = [[] for _ in range(tokens.shape[0])]
        sung = tokens.cpu().tolist()
        for row in range(tokens.shape[0]):
            ending = sung[row][length - NGRAM + 1 :]
            for i in range(length - NGRAM + 1):
                if ending == sung[row][i : i + NGRAM - 1]:
                    barred[row].append(sung[row][i + NGRAM - 1])
        for row in range(tokens.shape[0]):
            lprobs[row][torch.tensor(barred[row], dtype=torch.int64)] = torch.tensor(-math.inf).to(lprobs)
        return lprobs
    grams = tokens.unfold(1, NGRAM, 1)
    ending = tokens[:, length - NGRAM + 1 :]
    same = (grams[:, :, : NGRAM - 1] == ending[:, None, :]).all(2)
    cost = torch.zeros(same.shape, device=tokens.device).masked_fill_(same, -math.inf)
    return lprobs.scatter_add_(1, grams[:, :, NGRAM - 1], cost)


@torch.no_grad()
def sing(writer, opening):
    tokens = opening
    logits, state = writer(opening)
    for _ in range(VERSE):
        lprobs = bar_repeats(tokens, F.log_softmax(logits[:, -1].float(), 1))
        word = torch.multinomial(lprobs.exp(), 1)
        tokens = torch.cat([tokens, word], 1)
        logits, state = writer(word, state)
    return tokens


def main():
    torch.manual_seed(3)
    openings = (torch.rand(2048, OPENING, device=device) ** 3 * WORDS).long().clamp_max(WORDS - 1)
    worth = torch.rand(WORDS, device=device)
    writer = Writer().to(device)
    with torch.no_grad():
        writer.out.bias.copy_(torch.randn(WORDS, device=device) * 1.5)
    optimizer = torch.optim.Adam(writer.parameters(), lr=1e-5, fused=device.type == "cuda")
    usual = torch.zeros((), device=device)
    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        opening = openings.index_select(0, torch.randint(0, len(openings), (SONGS,), device=device))
        tokens = sing(writer, opening)
        verse = tokens[:, OPENING:]
        pay = worth[verse].mean(1)
        usual = torch.where(usual == 0, pay.mean(), 0.9 * usual + 0.1 * pay.mean())
        logits, _ = writer(tokens[:, :-1])
        chosen = F.log_softmax(logits[:, OPENING - 1 :].float(), 2).gather(2, verse[:, :, None]).squeeze(2)
        loss = -((pay - usual)[:, None] * chosen).mean() - 1e-4 * chosen.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(writer.parameters(), 1.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - started
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
