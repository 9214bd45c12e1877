"""A dialogue generator with teacher forcing, and a report of what it says, example by example."""

import math
import os
import time
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4500))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCAB = 200 if SMALL else 8000
DIM = 32 if SMALL else 256
LAYERS = 1 if SMALL else 4
BATCH = 8 if SMALL else 192
CONTEXT, REPLY = (12, 8) if SMALL else (40, 24)
DIALOGUES = 64 if SMALL else 20_000
PAD, START = 0, 1
LOG_EVERY = 100
EVAL_EVERY = 600


def as_number(value):
    """A plain number of whatever was handed in."""
    if isinstance(value, torch.Tensor):
        return value.item()
    return value


class AverageMetric:
    """A mean that can be added to another one: the numerators and the denominators are kept."""

    def __init__(self, numer, denom=1):
        self.numer = as_number(numer)
        self.denom = as_number(denom)

    @classmethod
    def many(cls, *objs):
        """One metric for each example of the batch."""
        if VARIANT != "a":
            objs = tuple(o.tolist() if isinstance(o, torch.Tensor) else o for o in objs)
        return [cls(*items) for items in zip(*objs)]

    def __add__(self, other):
        return type(self)(self.numer + other.numer, self.denom + other.denom)

    def value(self):
        return self.numer / max(self.denom, 1)


class PerplexityMetric(AverageMetric):
    """The exponential of a mean loss."""

    def value(self):
        return math.exp(min(super().value(), 30.0))


class TeacherMetrics:
    """Sums up the metrics of all examples since the last report."""

    def __init__(self):
        self.kept = {}

    def add(self, key, metric):
        self.kept[key] = self.kept[key] + metric if key in self.kept else metric

    def report(self):
        text = ", ".join(f"{key} {metric.value():.4f}" for key, metric in self.kept.items())
        self.kept = {}
        return text


class Dialogues:
    """Synthetic contexts with replies that repeat part of them, on the host, padded."""

    def __init__(self, seed=0):
        gen = torch.Generator().manual_seed(seed)
        self.context = torch.randint(2, VOCAB, (DIALOGUES, CONTEXT), generator=gen)
        lengths = torch.randint(REPLY // 3, REPLY + 1, (DIALOGUES, 1), generator=gen)
        self.reply = self.context[:, :REPLY].flip(1).clone()
        self.reply[torch.arange(REPLY)[None] >= lengths] = PAD
        if device == "cuda":
            self.context, self.reply = self.context.pin_memory(), self.reply.pin_memory()

    def batch(self, step):
        at = (step * BATCH) % (DIALOGUES - BATCH + 1)
        rows = slice(at, at + BATCH)
        return (
            self.context[rows].to(device, non_blocking=True),
            self.reply[rows].to(device, non_blocking=True),
        )


class Generator(nn.Module):
    """A small encoder and decoder with one table of words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        nn.init.normal_(self.words.weight, std=DIM**-0.5)
        self.places = nn.Parameter(0.02 * torch.randn(max(CONTEXT, REPLY), DIM))
        self.body = nn.Transformer(
            DIM, max(2, DIM // 64), LAYERS, LAYERS, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True
        )
        mask = torch.full((REPLY, REPLY), float("-inf")).triu(1)
        self.register_buffer("future", mask, persistent=False)

    def forward(self, context, reply):
        shifted = torch.cat([torch.full_like(reply[:, :1], START), reply[:, :-1]], dim=1)
        source = self.words(context) * math.sqrt(DIM) + self.places[: context.shape[1]]
        target = self.words(shifted) * math.sqrt(DIM) + self.places[: reply.shape[1]]
        hidden = self.body(source, target, tgt_mask=self.future, tgt_is_causal=True)
        return F.linear(hidden, self.words.weight)


class Agent:
    """Model, optimizer and the metrics of the examples in hand."""

    def __init__(self):
        self.model = Generator().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4, fused=device == "cuda")
        self.local = defaultdict(list)

    def record_local_metric(self, key, values):
        self.local[key].extend(values)

    def compute_loss(self, context, reply):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            scores = self.model(context, reply)
        flat = F.cross_entropy(
            scores.float().flatten(0, 1), reply.flatten(), ignore_index=PAD, reduction="none"
        )
        notnull = reply.ne(PAD)
        loss = flat.view_as(reply).sum(dim=1)
        tokens = notnull.sum(dim=1)
        correct = ((scores.argmax(dim=-1) == reply) & notnull).sum(dim=1)
        self.record_local_metric("loss", AverageMetric.many(loss.detach(), tokens))
        self.record_local_metric("ppl", PerplexityMetric.many(loss.detach(), tokens))
        self.record_local_metric("token_acc", AverageMetric.many(correct, tokens))
        self.record_local_metric("token_em", AverageMetric.many(correct == tokens))
        return loss.sum() / tokens.sum()

    def train_step(self, context, reply):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.compute_loss(context, reply)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def hand_over(self, teacher):
        for key, values in self.local.items():
            for metric in values:
                teacher.add(key, metric)
        self.local.clear()


@torch.no_grad()
def evaluate(agent, dialogues):
    agent.model.eval()
    total = sum(agent.compute_loss(*dialogues.batch(1000 + i)) for i in range(4))
    agent.local.clear()
    agent.model.train()
    return total.item() / 4


def main():
    torch.manual_seed(0)
    train, valid = Dialogues(0), Dialogues(1)
    agent, teacher = Agent(), TeacherMetrics()
    schedule = torch.optim.lr_scheduler.LambdaLR(agent.optimizer, lambda s: min(1.0, (s + 1) / 400))
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        last = agent.train_step(*train.batch(step))
        schedule.step()
        agent.hand_over(teacher)
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: {teacher.report()}")
        if (step + 1) % EVAL_EVERY == 0:
            print(f"step {step + 1}: valid loss {evaluate(agent, valid):.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
