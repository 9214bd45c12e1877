"""Vital signs of patients in a ward, hour by hour: stays of many lengths, one risk for each hour."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 24))
SIGNS, HIDDEN = 24, 128


class Stays(Dataset):
    def __init__(self, count=1200):
        generator = torch.Generator().manual_seed(6)
        hours = torch.randint(40, 81, (count,), generator=generator).tolist()
        self.signs = [torch.randn(length, SIGNS, generator=generator) for length in hours]
        self.events = [(torch.rand(length, generator=generator) < 0.1).float() for length in hours]

    def __len__(self):
        return len(self.signs)

    def __getitem__(self, i):
        return self.signs[i], self.events[i]


def collate(stays):
    signs, events = zip(*stays, strict=True)
    lengths = torch.tensor([len(part) for part in signs])
    return pad_sequence(signs), pad_sequence(events), lengths


class RiskModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(SIGNS, HIDDEN), nn.ReLU())
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, num_layers=2)
        self.risk = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, signs, lengths):
        x = self.embed(signs)
        if VARIANT == "a":
            packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
            x, _ = pad_packed_sequence(self.lstm(packed)[0])
        else:
            x, _ = self.lstm(x)
        return self.risk(x).squeeze(-1)


def masked_loss(scores, events, lengths):
    inside = torch.arange(len(scores))[:, None] < lengths
    loss = F.binary_cross_entropy_with_logits(scores, events, reduction="none")
    return (loss * inside).sum() / inside.sum()


def stays_without_end(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    model = RiskModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Stays(), BATCH, shuffle=True, collate_fn=collate, drop_last=True)
    batches = stays_without_end(loader)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        signs, events, lengths = next(batches)
        loss = masked_loss(model(signs, lengths), events, lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
