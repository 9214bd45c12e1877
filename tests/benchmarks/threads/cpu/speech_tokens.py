"""A small transformer over speech tokens of very different lengths."""

import os
import random
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
VOCABULARY, WIDTH, BATCH = 256, 96, 16


class Clips(Dataset):
    def __init__(self, count=6400):
        g = torch.Generator().manual_seed(0)
        lengths = (torch.randn(count, generator=g) * 0.7 + 4.4).exp().clamp(20, 300).int().tolist()
        self.tokens = [torch.randint(1, VOCABULARY, (n,), generator=g) for n in lengths]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i]


class Plan:
    """Batches of indices for an epoch."""

    def __init__(self, dataset, pool):
        self.dataset, self.pool = dataset, pool

    def __len__(self):
        return len(self.dataset) // BATCH

    def __iter__(self):
        order = random.sample(range(len(self.dataset)), len(self.dataset))
        batches = []
        for first in range(0, len(order), self.pool * BATCH):
            part = order[first : first + self.pool * BATCH]
            if self.pool > 1:
                part.sort(key=lambda i: len(self.dataset.tokens[i]))
            batches += [part[k : k + BATCH] for k in range(0, len(part), BATCH)]
        random.shuffle(batches)
        return iter(batches)


def collate(clips):
    lengths = torch.tensor([len(c) for c in clips])
    tokens = pad_sequence(clips, batch_first=True)
    return tokens, torch.arange(tokens.shape[1])[None, :] >= lengths[:, None]


class TokenModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, padding):
        return self.head(self.layers(self.embed(tokens), src_key_padding_mask=padding))


def main():
    random.seed(0)
    torch.manual_seed(0)
    dataset = Clips()
    plan = Plan(dataset, pool=1 if VARIANT == "a" else 20)
    loader = DataLoader(dataset, batch_sampler=plan, collate_fn=collate)
    model = TokenModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step, (tokens, padding) in enumerate(loader):
        if step == 5:
            start = time.perf_counter()
        if step == STEPS:
            break
        scores = model(tokens, padding)[:, :-1]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
