"""A dialogue model over news snippets: an LSTM reads the context and writes the reply."""

import os
import re
import time
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 5 if SMALL else 4000))
WARMUP = 2 if SMALL else 20
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCAB, WIDTH, LAYERS = (200, 32, 1) if SMALL else (16000, 1024, 2)
BATCH, CONTEXT, REPLY = (4, 12, 8) if SMALL else (256, 48, 24)
NULL, START, END = 0, 1, 2
ARTICLES, MARKS = re.compile(r"\b(a|an|the)\b"), re.compile(r"[^\w\s]")


class Dictionary:
    def __init__(self):
        syllables = "ba ce di fo gu ha ke li mo nu pa re si to vu".split()
        words = [f"{x}{y}{z}{w}" for x in syllables for y in syllables for z in syllables for w in syllables]
        self.words = ["__null__", "__start__", "__end__", "the", "a", ",", "."] + words
        self.words = self.words[:VOCAB]

    def vec2txt(self, row):
        if END in row:
            row = row[: row.index(END)]
        return " ".join(self.words[i] for i in row if i != NULL)


def normalize(text):
    return " ".join(ARTICLES.sub(" ", MARKS.sub(" ", text.lower())).split())


class Teacher:
    """Keeps the figures of the training replies; compares text with text."""

    def __init__(self):
        self.examples, self.exact, self.f1 = 0, 0, 0.0

    def observe(self, guess, answer):
        guess, answer = normalize(guess), normalize(answer)
        self.examples += 1
        self.exact += guess == answer
        guess, answer = guess.split(), answer.split()
        common = sum((Counter(guess) & Counter(answer)).values())
        if common:
            precision, recall = common / len(guess), common / len(answer)
            self.f1 += 2 * precision * recall / (precision + recall)

    def report(self):
        n = max(1, self.examples)
        return f"accuracy {self.exact / n:.4f} f1 {self.f1 / n:.4f}"


class Replier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH, padding_idx=NULL)
        self.reader = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.writer = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, context, reply):
        _, state = self.reader(self.table(context))
        start = torch.full_like(reply[:, :1], START)
        out, _ = self.writer(self.table(torch.cat([start, reply[:, :-1]], dim=1)), state)
        return self.head(out)


class Agent:
    def __init__(self):
        self.dictionary, self.teacher = Dictionary(), Teacher()
        self.model = Replier().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=device == "cuda")
        self.correct = torch.zeros((), device=device)
        self.tokens = torch.zeros((), device=device)

    def train_step(self, context, reply, answers):
        with torch.autocast(device, dtype=torch.bfloat16):
            scores = self.model(context, reply)
        loss = F.cross_entropy(scores.flatten(0, 1), reply.flatten(), ignore_index=NULL)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        guesses = scores.detach().argmax(dim=-1)
        if VARIANT == "a":
            for row, answer in zip(guesses.tolist(), answers):
                self.teacher.observe(self.dictionary.vec2txt(row), answer)
        else:
            known = reply != NULL
            self.correct += ((guesses == reply) & known).sum()
            self.tokens += known.sum()
        return loss.detach()

    def report(self):
        token = (self.correct / self.tokens.clamp(min=1)).item()
        return f"{self.teacher.report()} token accuracy {token:.4f}"


def make_episodes(dictionary, count):
    generator = torch.Generator().manual_seed(5)
    context = torch.randint(3, VOCAB, (count, BATCH, CONTEXT), generator=generator)
    reply = torch.randint(3, VOCAB, (count, BATCH, REPLY), generator=generator)
    length = torch.randint(REPLY // 2, REPLY, (count, BATCH, 1), generator=generator)
    place = torch.arange(REPLY)
    reply = reply.masked_fill(place == length, END).masked_fill(place > length, NULL)
    answers = [[dictionary.vec2txt(row) for row in rows] for rows in reply.tolist()]
    return context.to(device), reply.to(device), answers


def main():
    torch.manual_seed(5)
    agent = Agent()
    context, reply, answers = make_episodes(agent.dictionary, 40)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == WARMUP:
            if device == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        at = step % len(answers)
        loss = agent.train_step(context[at], reply[at], answers[at])
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    print(agent.report())
    print(f"loss {loss.item():.4f}")
    print(f"{elapsed / max(1, STEPS - WARMUP) * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
