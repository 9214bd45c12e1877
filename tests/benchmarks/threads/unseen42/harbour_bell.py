"""Train a small speech recogniser with connectionist temporal classification.

Utterances are log-mel features of several lengths, gathered into batches of a fixed total length. While
training, spans of frames and of mel bins are blanked in each utterance.
"""

import math
import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2400))

MELS = 80
TOKENS = 32
UTTERANCES = 320
FRAMES_PER_BATCH = 24000
EVAL_EVERY = 100


class Utterances(Dataset):
    """Utterances with features that follow their tokens; a list of places gives a whole batch."""

    def __init__(self, count, seed, transforms=()):
        rng = np.random.default_rng(seed)
        table = np.random.default_rng(11).normal(size=(TOKENS, MELS)).astype(np.float32)
        self.items = []
        self.transforms = list(transforms)
        for _ in range(count):
            frames = int(rng.integers(700, 1600))
            tokens = rng.integers(1, TOKENS, size=frames // 50)
            spread = np.repeat(tokens, math.ceil(frames / len(tokens)))[:frames]
            features = table[spread] + rng.normal(scale=0.8, size=(frames, MELS)).astype(np.float32)
            self.items.append((torch.from_numpy(features), torch.from_numpy(tokens)))

    def lengths(self):
        return [len(features) for features, _ in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, places):
        chosen = [self.items[place] for place in places]
        features = nn.utils.rnn.pad_sequence([item[0] for item in chosen], batch_first=True)
        lengths = torch.tensor([len(item[0]) for item in chosen])
        tokens = torch.cat([item[1] for item in chosen])
        token_lengths = torch.tensor([len(item[1]) for item in chosen])
        for transform in self.transforms:
            features = transform(features)
        return {"features": features, "lengths": lengths, "tokens": tokens, "token_lengths": token_lengths}


class LengthBatches(Sampler):
    """Batches of utterances of like lengths, each of at most so many frames with the padding."""

    def __init__(self, lengths, limit, seed):
        self.lengths, self.limit, self.seed, self.epoch = lengths, limit, seed, 0

    def make(self):
        rng = random.Random(self.seed + self.epoch)
        places = sorted(range(len(self.lengths)), key=lambda place: self.lengths[place] + rng.uniform(0, 100))
        groups, current, longest = [], [], 0
        for place in places:
            longest = max(longest, self.lengths[place])
            if current and longest * (len(current) + 1) > self.limit:
                groups.append(current)
                current, longest = [], self.lengths[place]
            current.append(place)
        groups.append(current)
        rng.shuffle(groups)
        return groups

    def __iter__(self):
        self.epoch += 1
        return iter(self.make())

    def __len__(self):
        return len(self.make())


def blank_one_span(features, size, value, axis):
    """Blank a span of frames (axis 1) or of mel bins (axis 2) of features (1, frames, bins)."""
    shape = features.size()
    features = features.reshape([-1] + list(shape[-2:]))
    width = (torch.rand(1) * size).long()
    start = (torch.rand(1) * (features.size(axis) - width)).long()
    places = torch.arange(0, features.shape[axis])
    mask = (places >= start) & (places < start + width)
    if axis == 1:
        mask = mask.unsqueeze(-1)
    features = features.masked_fill(mask, value)
    return features.reshape(shape[:-2] + features.shape[-2:])


def blank_spans(features, size, times, value, axis):
    """Blank several spans of frames (axis 1) or of mel bins (axis 2) of features (frames, bins)."""
    if VARIANT == "a":
        for _ in range(times):
            features = blank_one_span(features.unsqueeze(0), size, value, axis).squeeze(0)
        return features
    draws = torch.rand(times, 2)
    widths = (draws[:, 0] * size).long()
    starts = (draws[:, 1] * (features.size(axis - 1) - widths)).long()
    for start, width in zip(starts.tolist(), widths.tolist()):
        features.narrow(axis - 1, start, width).fill_(value)
    return features


class SpecAugment:
    """Blank spans of each utterance of a batch, in a copy of the features."""

    def __init__(self, bin_spans=2, bin_size=27, frame_spans=10, frame_size=100, share=0.15, chance=0.9):
        self.bin_spans, self.bin_size = bin_spans, bin_size
        self.frame_spans, self.frame_size = frame_spans, frame_size
        self.share, self.chance = share, chance

    def single(self, features):
        mean = features.mean().item()
        features = blank_spans(features, self.bin_size, self.bin_spans, mean, axis=2)
        total = self.share * features.size(0)
        spans = min(self.frame_spans, math.ceil(total / 10))
        return blank_spans(features, min(self.frame_size, total // spans), spans, mean, axis=1)

    def __call__(self, features):
        features = features.clone()
        for place in range(features.size(0)):
            if torch.rand(()) < self.chance:
                features[place] = self.single(features[place])
        return features


class Recogniser(nn.Module):
    """Convolutions that take one frame of eight, a recurrent layer and a layer of tokens."""

    def __init__(self, width=176):
        super().__init__()
        self.first = nn.Conv1d(MELS, width, 5, stride=4, padding=2)
        self.second = nn.Conv1d(width, width, 5, stride=2, padding=2)
        self.mix = nn.ModuleList([nn.Conv1d(width, width, 9, padding=4, groups=width) for _ in range(2)])
        self.dense = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.norm = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.head = nn.Linear(width, TOKENS)

    def forward(self, features, lengths):
        hidden = F.relu(self.first(features.transpose(1, 2)))
        hidden = F.relu(self.second(hidden)).transpose(1, 2)
        for mix, dense, norm in zip(self.mix, self.dense, self.norm):
            around = mix(hidden.transpose(1, 2)).transpose(1, 2)
            hidden = norm(hidden + F.relu(dense(around)))
        return self.head(hidden).log_softmax(-1), ((lengths + 3) // 4 + 1) // 2


def ctc(model, batch):
    log_probs, lengths = model(batch["features"], batch["lengths"])
    return F.ctc_loss(log_probs.transpose(0, 1), batch["tokens"], lengths, batch["token_lengths"])


@torch.no_grad()
def check(model, loader):
    losses = [ctc(model, batch).item() for batch in loader]
    return sum(losses) / len(losses)


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    train_set = Utterances(UTTERANCES, seed=1, transforms=[SpecAugment()])
    check_set = Utterances(24, seed=2)
    sampler = LengthBatches(train_set.lengths(), FRAMES_PER_BATCH, seed=5)
    loader = DataLoader(train_set, sampler=sampler, batch_size=None)
    check_batches = LengthBatches(check_set.lengths(), FRAMES_PER_BATCH, seed=5)
    check_loader = DataLoader(check_set, sampler=check_batches, batch_size=None)
    model = Recogniser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    stream = endless(loader)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        loss = ctc(model, next(stream))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        if step % EVAL_EVERY == EVAL_EVERY - 1:
            print(f"step {step + 1} loss {loss.item():.4f} held out {check(model, check_loader):.4f}")
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
