"""Sentence embeddings by triplets: a small encoder, two sentences of each label per batch."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

VOCABULARY, LENGTH = (500, 12) if SMALL else (30_000, 32)
WIDTH, HEADS, LAYERS = (32, 4, 2) if SMALL else (384, 12, 6)
BATCH = 16 if SMALL else 640
LABELS, PER_LABEL = (40, 4) if SMALL else (6_000, 8)
MARGIN = 5.0


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, normalised after each."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(h.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.outer(F.gelu(self.inner(x))))


class SentenceEncoder(nn.Module):
    """Token and position embeddings, layers, mean over the tokens."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(EncoderLayer(WIDTH, HEADS) for _ in range(LAYERS))

    def forward(self, tokens):
        present = tokens != 0
        x = self.norm(self.tokens(tokens) + self.positions[: tokens.size(1)])
        for layer in self.layers:
            x = layer(x, present[:, None, None, :])
        weights = present.unsqueeze(-1).to(x.dtype)
        return (x * weights).sum(1) / weights.sum(1)


def euclidean_distance(embeddings):
    """Distances of all pairs of rows."""
    products = embeddings @ embeddings.t()
    squares = products.diagonal()
    distances = (squares.unsqueeze(0) - 2.0 * products + squares.unsqueeze(1)).clamp(min=0)
    same = distances.eq(0).float()
    return (1.0 - same) * torch.sqrt(distances + same * 1e-16)


class BatchAllTripletLoss(nn.Module):
    """Mean hinge of the triplets of a batch that are not yet apart by the margin."""

    def __init__(self, triplet_margin=MARGIN):
        super().__init__()
        self.triplet_margin = triplet_margin

    def forward(self, embeddings, labels):
        if VARIANT == "a":
            return self.first_form(embeddings, labels)
        return self.second_form(embeddings, labels)

    @staticmethod
    def triplet_mask(labels):
        """True at [a, p, n] where a and p are of one label and n of another."""
        distinct = ~torch.eye(labels.size(0), dtype=torch.bool, device=labels.device)
        distinct_indices = distinct.unsqueeze(2) & distinct.unsqueeze(1) & distinct.unsqueeze(0)
        label_equal = labels.unsqueeze(0) == labels.unsqueeze(1)
        return label_equal.unsqueeze(2) & ~label_equal.unsqueeze(1) & distinct_indices

    def first_form(self, embeddings, labels):
        pairwise = euclidean_distance(embeddings)
        positive = pairwise.unsqueeze(2)
        negative = pairwise.unsqueeze(1)
        triplets = positive - negative + self.triplet_margin
        mask = self.triplet_mask(labels)
        triplets = mask.float() * triplets
        triplets[triplets < 0] = 0
        active = triplets[triplets > 1e-16].size(0)
        return triplets.sum() / (active + 1e-16)

    def second_form(self, embeddings, labels):
        pairwise = euclidean_distance(embeddings)
        label_equal = labels.unsqueeze(0) == labels.unsqueeze(1)
        pairs = label_equal & ~torch.eye(labels.size(0), dtype=torch.bool, device=labels.device)
        anchors, positives = pairs.nonzero(as_tuple=True)
        triplets = pairwise[anchors, positives].unsqueeze(1) - pairwise[anchors] + self.triplet_margin
        triplets = ~label_equal[anchors] * triplets
        triplets[triplets < 0] = 0
        active = triplets[triplets > 1e-16].size(0)
        return triplets.sum() / (active + 1e-16)


class LabelledSentences:
    """Sentences of a topic share words; a batch holds two sentences of each of its labels."""

    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        topic = torch.randint(1, VOCABULARY, (LABELS, 1, LENGTH), generator=generator)
        own = torch.randint(1, VOCABULARY, (LABELS, PER_LABEL, LENGTH), generator=generator)
        shared = torch.rand(LABELS, PER_LABEL, LENGTH, generator=generator) < 0.3
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (LABELS, PER_LABEL, 1), generator=generator)
        tokens = torch.where(shared, topic, own) * (torch.arange(LENGTH) < lengths)
        self.tokens = tokens.to(device)
        self.generator = generator

    def batches(self):
        while True:
            order = torch.randperm(LABELS, generator=self.generator)
            for i in range(0, LABELS - BATCH // 2 + 1, BATCH // 2):
                labels = order[i : i + BATCH // 2]
                which = torch.rand(len(labels), PER_LABEL, generator=self.generator).argsort(1)[:, :2]
                labels, which = labels.repeat_interleave(2).to(device), which.reshape(-1).to(device)
                yield self.tokens[labels, which], labels


@torch.no_grad()
def retrieval(model, data, count=256):
    """How often the sentence nearest to a topic's first sentence is its second one."""
    model.eval()
    count = min(count, LABELS)
    with torch.autocast(device, dtype=torch.bfloat16):
        first, second = model(data.tokens[:count, 0]), model(data.tokens[:count, 1])
    nearest = torch.cdist(first.float(), second.float()).argmin(1)
    model.train()
    return (nearest == torch.arange(count, device=device)).float().mean().item()


def main():
    model = SentenceEncoder().to(device)
    criterion = BatchAllTripletLoss()
    data = LabelledSentences()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 200))
    source = data.batches()
    model.train()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        tokens, labels = next(source)
        with torch.autocast(device, dtype=torch.bfloat16):
            embeddings = model(tokens)
        loss = criterion(embeddings.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        last = loss.detach()
        if (step + 1) % 200 == 0:
            print(f"step {step + 1} loss {last.item():.4f}", flush=True)
        if (step + 1) % 1000 == 0:
            print(f"retrieval {retrieval(model, data):.4f}", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
