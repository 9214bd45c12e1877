"""Train a small draft model that guesses the next hidden states and tokens of a large language model.

The hidden states of the large model were taken beforehand. Samples are packed into one long row for each
step; the draft model joins them with the tokens, attends within each sample, and learns the large model's
choice of tokens.
"""

import itertools
import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4600))

HIDDEN = 128
LAYERS_TAKEN = 3
VOCABULARY = 1500
HEADS = 4
ROW = 512
SAMPLES = 240
EVAL_EVERY = 100


class Samples(Dataset):
    """Hidden states, tokens and the places that count, sample by sample."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        embedding = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(9))
        self.items = []
        for _ in range(count):
            length = int(rng.integers(40, 160))
            tokens = torch.randint(0, VOCABULARY, (length,), generator=generator)
            last = embedding[tokens.roll(-1)] + 0.5 * torch.randn(length, HIDDEN, generator=generator)
            noise = torch.randn(length, LAYERS_TAKEN * HIDDEN, generator=generator)
            mask = torch.ones(length)
            mask[: length // 4] = 0
            self.items.append(
                {
                    "hidden_states": last.repeat(1, LAYERS_TAKEN) + noise,
                    "input_ids": tokens,
                    "last_hidden_states": last,
                    "loss_mask": mask,
                    "lengths": torch.tensor([length]),
                    "position_ids": torch.arange(length),
                }
            )

    def lengths(self):
        return [int(item["lengths"]) for item in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        item = dict(self.items[place])
        item["hidden_states"] = item["hidden_states"] + 0.05 * torch.randn_like(item["hidden_states"])
        return item


class PackedBatches(Sampler):
    """Groups of samples that together fill a row."""

    def __init__(self, lengths, row, seed):
        self.lengths, self.row = lengths, row
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        group, filled = [], 0
        for place in self.rng.permutation(len(self.lengths)).tolist():
            if group and filled + self.lengths[place] > self.row:
                yield group
                group, filled = [], 0
            group.append(place)
            filled += self.lengths[place]


def cut_and_pad(tensor, length):
    """The first rows of a tensor, with rows of zeros up to a length."""
    cut = tensor[:length]
    padding = [0, 0] * cut.dim()
    padding[-1] = length - cut.shape[0]
    return F.pad(cut, padding)


def fill_row(tensors, length):
    """Tensors one after the other, with rows of zeros up to a length."""
    row = tensors[0].new_zeros((length, *tensors[0].shape[1:]))
    place = 0
    for tensor in tensors:
        part = tensor[: length - place]
        row[place : place + len(part)] = part
        place += len(part)
    return row


class Collate:
    """Packs the samples of a step into one row."""

    keys = ("hidden_states", "input_ids", "last_hidden_states", "loss_mask", "position_ids")

    def __init__(self, row):
        self.row = row

    def __call__(self, samples):
        batch = {}
        for key in self.keys:
            tensors = [sample[key] for sample in samples]
            if VARIANT == "a":
                batch[key] = cut_and_pad(torch.cat(tensors, dim=0), self.row)[None]
            else:
                batch[key] = fill_row(tensors, self.row)[None]
        owner = [torch.full_like(sample["position_ids"], place + 1) for place, sample in enumerate(samples)]
        batch["owner"] = cut_and_pad(torch.cat(owner), self.row)
        return batch


class Attention(nn.Module):
    """Causal attention within each sample of a row."""

    def __init__(self, width, inputs):
        super().__init__()
        self.queries_keys_values = nn.Linear(inputs, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, hidden, mask):
        count, length, _ = hidden.shape
        parts = self.queries_keys_values(hidden).view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(count, length, -1))


class Draft(nn.Module):
    """One decoder layer over joined tokens and hidden states, with the head of the large model."""

    def __init__(self, width=HIDDEN, inner=512):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width).requires_grad_(False)
        self.positions = nn.Embedding(ROW, width)
        self.join = nn.Linear(LAYERS_TAKEN * width, width)
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(4)])
        self.attention = Attention(width, 2 * width)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.verifier_head = nn.Linear(width, VOCABULARY, bias=False).requires_grad_(False)

    def forward(self, batch):
        owner = batch["owner"]
        mask = (owner[:, None] == owner[None, :]).tril()
        tokens = self.embedding(batch["input_ids"]) + self.positions(batch["position_ids"])
        hidden = self.join(batch["hidden_states"])
        joined = torch.cat([self.norms[0](tokens), self.norms[1](hidden)], dim=-1)
        hidden = hidden + self.attention(joined, mask)
        inner = self.norms[2](hidden)
        hidden = hidden + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return self.head(self.norms[3](hidden))

    def loss(self, batch):
        with torch.no_grad():
            wanted = self.verifier_head(batch["last_hidden_states"]).softmax(-1)
        found = self(batch).log_softmax(-1)
        each = -(wanted * found).sum(-1)
        return (each * batch["loss_mask"]).sum() / batch["loss_mask"].sum().clamp_min(1)


def rate(step):
    """Share of the learning rate at a step: up in a line, down along a cosine."""
    return min(1.0, (step + 1) / 40) * 0.5 * (1 + math.cos(math.pi * step / max(STEPS, 1)))


@torch.no_grad()
def check(model, batches):
    return sum(model.loss(batch).item() for batch in batches) / len(batches)


def main():
    torch.manual_seed(0)
    samples = Samples(SAMPLES, seed=1)
    held_out = Samples(16, seed=2)
    collate = Collate(ROW)
    check_batches = [
        collate([held_out.items[place] for place in range(start, start + 4)]) for start in range(0, 16, 4)
    ]
    sampler = PackedBatches(samples.lengths(), ROW, seed=3)
    generator = torch.Generator().manual_seed(4)
    loader = DataLoader(
        samples,
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=1,
        prefetch_factor=4,
        persistent_workers=True,
        generator=generator,
    )
    model = Draft()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=5e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    stream = itertools.chain.from_iterable(itertools.repeat(loader))

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        loss = model.loss(next(stream))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % EVAL_EVERY == EVAL_EVERY - 1:
            print(f"step {step + 1} loss {loss.item():.4f} held out {check(model, check_batches):.4f}")
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
