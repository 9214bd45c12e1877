"""Reading comprehension: attention flow between question and passage, spans as answers."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

VOCABULARY = 200 if SMALL else 30000
WORD = 16 if SMALL else 100
BATCH, EXAMPLES = (4, 40) if SMALL else (60, 3000)
PASSAGE = (20, 30) if SMALL else (150, 400)
QUESTION = (5, 9) if SMALL else (8, 30)
FAR = -1e7


def masked_softmax(vector, mask):
    """Softmax over the places that count."""
    return torch.softmax(vector.masked_fill(~mask, FAR), dim=-1)


def get_best_span(start_logits, end_logits):
    """The span with the largest sum of logits whose end is not before its start."""
    count, length = start_logits.shape
    if VARIANT == "a":
        best_score = [-1e20] * count
        best_start = [0] * count
        best_span = start_logits.new_zeros((count, 2), dtype=torch.long)
        start_logits = start_logits.detach().cpu().numpy()
        end_logits = end_logits.detach().cpu().numpy()
        for b in range(count):
            for j in range(length):
                value = start_logits[b, best_start[b]]
                if value < start_logits[b, j]:
                    best_start[b] = j
                    value = start_logits[b, j]
                other = end_logits[b, j]
                if value + other > best_score[b]:
                    best_span[b, 0] = best_start[b]
                    best_span[b, 1] = j
                    best_score[b] = value + other
        return best_span
    scores = start_logits.detach().unsqueeze(2) + end_logits.detach().unsqueeze(1)
    scores = scores + torch.triu(torch.ones(length, length, device=scores.device)).log()
    best = scores.view(count, -1).argmax(dim=-1)
    return torch.stack([best // length, best % length], dim=-1)


class Highway(nn.Module):
    """Two gated layers."""

    def __init__(self, size):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, 2 * size) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            content, gate = layer(x).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            x = gate * x + (1 - gate) * F.relu(content)
        return x


class Similarity(nn.Module):
    """Trainable similarity of passage and question words."""

    def __init__(self, size):
        super().__init__()
        self.left, self.right = nn.Linear(size, 1), nn.Linear(size, 1, bias=False)
        self.both = nn.Parameter(torch.randn(size) * 0.1)

    def forward(self, passage, question):
        product = (passage * self.both) @ question.transpose(1, 2)
        return self.left(passage) + self.right(question).transpose(1, 2) + product


class SpanAccuracy:
    """Share of answers found in full, start and end apart."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.found = torch.zeros(3, device=device)
        self.count = 0

    def __call__(self, best_span, start_logits, end_logits, start, end):
        both = best_span.eq(torch.stack([start, end], dim=1)).all(dim=1)
        parts = [start_logits.argmax(1).eq(start), end_logits.argmax(1).eq(end), both]
        self.found += torch.stack([part.float().sum() for part in parts])
        self.count += len(start)

    def get_metric(self):
        values = (self.found / max(self.count, 1)).tolist()
        return dict(zip(("start", "end", "span"), values))


class AttentionFlow(nn.Module):
    """Embeds, encodes, attends both ways, models the passage and points at start and end."""

    def __init__(self):
        super().__init__()
        size = 2 * WORD
        self.embedding = nn.Embedding(VOCABULARY, WORD, padding_idx=0)
        self.highway = Highway(WORD)
        self.phrase = nn.LSTM(WORD, WORD, batch_first=True, bidirectional=True)
        self.similarity = Similarity(size)
        self.modeling = nn.LSTM(4 * size, WORD, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.end_encoder = nn.LSTM(7 * size, WORD, batch_first=True, bidirectional=True)
        self.start, self.end = nn.Linear(5 * size, 1), nn.Linear(5 * size, 1)
        self.drop = nn.Dropout(0.2)
        self.accuracy = SpanAccuracy()

    def forward(self, question, passage, start, end):
        question_mask, passage_mask = question.ne(0), passage.ne(0)
        q = self.drop(self.phrase(self.highway(self.embedding(question)))[0])
        p = self.drop(self.phrase(self.highway(self.embedding(passage)))[0])
        similarity = self.similarity(p, q)
        attended = masked_softmax(similarity, question_mask.unsqueeze(1)) @ q
        strongest = similarity.masked_fill(~question_mask.unsqueeze(1), FAR).max(dim=-1)[0]
        summary = masked_softmax(strongest, passage_mask).unsqueeze(1) @ p
        merged = torch.cat([p, attended, p * attended, p * summary.expand_as(p)], dim=-1)
        modeled = self.drop(self.modeling(merged)[0])
        start_logits = self.start(self.drop(torch.cat([merged, modeled], dim=-1))).squeeze(-1)
        at_start = masked_softmax(start_logits, passage_mask).unsqueeze(1) @ modeled
        at_start = at_start.expand_as(modeled)
        for_end = torch.cat([merged, modeled, at_start, modeled * at_start], dim=-1)
        encoded = self.drop(self.end_encoder(for_end)[0])
        end_logits = self.end(self.drop(torch.cat([merged, encoded], dim=-1))).squeeze(-1)
        start_logits = start_logits.masked_fill(~passage_mask, FAR)
        end_logits = end_logits.masked_fill(~passage_mask, FAR)
        best_span = get_best_span(start_logits, end_logits)
        loss = F.cross_entropy(start_logits, start) + F.cross_entropy(end_logits, end)
        self.accuracy(best_span, start_logits, end_logits, start, end)
        return {"loss": loss, "best_span": best_span}


class Questions(torch.utils.data.Dataset):
    """Passages that hold the words of the question around the answer."""

    def __init__(self, count):
        rng = np.random.default_rng(8)
        self.items = []
        for _ in range(count):
            passage = rng.integers(1, VOCABULARY, rng.integers(*PASSAGE))
            question = rng.integers(1, VOCABULARY, rng.integers(*QUESTION))
            start = int(rng.integers(2, len(passage) - 6))
            end = start + int(rng.integers(0, 4))
            passage[start - 2 : start] = question[:2]
            self.items.append((question, passage, start, end))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    """Pads questions and passages of a batch."""
    padded = []
    for part in (0, 1):
        rows = [torch.from_numpy(item[part]) for item in items]
        padded.append(nn.utils.rnn.pad_sequence(rows, batch_first=True))
    return (*padded, torch.tensor([item[2] for item in items]), torch.tensor([item[3] for item in items]))


def endless(loader):
    """Batches epoch after epoch."""
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        Questions(EXAMPLES),
        BATCH,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
        num_workers=0 if SMALL else 2,
        persistent_workers=not SMALL,
        pin_memory=device == "cuda",
    )
    batches = endless(loader)
    model = AttentionFlow().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.9))
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start_time = time.perf_counter()
        batch = [tensor.to(device, non_blocking=True) for tensor in next(batches)]
        last = model(*batch)["loss"]
        optimizer.zero_grad()
        last.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 200 == 199:
            print(f"step {step + 1}: loss {last.item():.4f}, {model.accuracy.get_metric()}")
            model.accuracy.reset()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start_time
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
