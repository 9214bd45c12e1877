"""Questions about tables of ferns to database queries: a word-level encoder and decoder with attention."""

import os
import random
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "380"))
EXAMPLES = 1280
BATCH = 32
WORDS = 2000
ACTIONS = 200
HIDDEN = 160
PAD = 0
device = torch.device("cpu")


class Example:
    """A question, the columns it may speak of, and the actions that build the query."""

    def __init__(self, rng):
        self.question = [rng.randrange(1, WORDS) for _ in range(rng.randint(12, 24))]
        self.columns = [
            [rng.randrange(1, WORDS) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(8, 16))
        ]
        self.actions = [1 + (w * 7) % (ACTIONS - 1) for w in self.question[: rng.randint(8, 12)]]


class Batch:
    """Padded tensors of a list of examples."""

    def __init__(self, examples):
        lens = [len(ex.question) for ex in examples]
        longest = max(lens)
        self.questions = torch.tensor([ex.question + [PAD] * (longest - len(ex.question)) for ex in examples])
        self.question_mask = torch.tensor([[True] * n + [False] * (longest - n) for n in lens])
        most = max(len(ex.columns) for ex in examples)
        width = max(len(c) for ex in examples for c in ex.columns)
        columns = [
            [c + [PAD] * (width - len(c)) for c in ex.columns] + [[PAD] * width] * (most - len(ex.columns))
            for ex in examples
        ]
        self.columns = torch.tensor(columns)
        self.column_mask = torch.tensor(
            [[True] * len(ex.columns) + [False] * (most - len(ex.columns)) for ex in examples]
        )
        deepest = max(len(ex.actions) for ex in examples)
        self.actions = torch.tensor([ex.actions + [PAD] * (deepest - len(ex.actions)) for ex in examples])


class FernParser(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN, padding_idx=PAD)
        self.actions = nn.Embedding(ACTIONS, HIDDEN, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.decoder = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Sequential(nn.Linear(2 * HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, ACTIONS))

    def forward(self, batch):
        spoken = (batch.columns != PAD).sum(-1, keepdim=True).clamp(min=1)
        columns = self.words(batch.columns).sum(2) / spoken
        nodes = torch.cat([self.words(batch.questions), columns], dim=1)
        mask = torch.cat([batch.question_mask, batch.column_mask], dim=1)
        memory = self.encoder(nodes, src_key_padding_mask=~mask)
        before = F.pad(batch.actions[:, :-1], (1, 0))
        states, _ = self.decoder(self.actions(before))
        scores = self.query(states) @ memory.transpose(1, 2) / HIDDEN**0.5
        weights = scores.masked_fill(~mask.unsqueeze(1), -1e9).softmax(-1)
        logits = self.out(torch.cat([states, weights @ memory], dim=-1))
        return F.cross_entropy(logits.flatten(0, 1), batch.actions.flatten(), ignore_index=PAD)


def batches(examples, rng):
    """One epoch: lists of examples in random order."""
    order = list(range(len(examples)))
    rng.shuffle(order)
    for i in range(0, len(order), BATCH):
        yield [examples[j] for j in order[i : i + BATCH]]


def main():
    torch.manual_seed(0)
    rng = random.Random(17)
    examples = [Example(rng) for _ in range(EXAMPLES)]
    epochs = -(-STEPS * BATCH // EXAMPLES)
    plan = [chosen for _ in range(epochs) for chosen in batches(examples, rng)][:STEPS]
    if VARIANT != "a":
        plan = [Batch(chosen) for chosen in plan]
    model = FernParser().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step, chosen in enumerate(plan):
        if step == warm:
            start = time.perf_counter()
        batch = chosen if isinstance(chosen, Batch) else Batch(chosen)
        loss = model(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * took / max(1, STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
