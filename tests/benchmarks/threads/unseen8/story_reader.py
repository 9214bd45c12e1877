"""Reads stories aloud in the voices of its speakers."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
LETTERS, VOICE, MELS, WIDTH = 70, 256, 80, 96


class Stories(Dataset):
    def __init__(self, number=1200):
        rng = np.random.default_rng(0)
        self.texts = [rng.integers(1, LETTERS, int(n)) for n in rng.integers(20, 60, number)]
        self.mels = [rng.standard_normal((4 * len(text), MELS), dtype=np.float32) for text in self.texts]
        self.voices = rng.standard_normal((number, VOICE), dtype=np.float32)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i], self.mels[i], self.voices[i]


def collate(samples):
    texts = pad_sequence([torch.from_numpy(text) for text, _, _ in samples], batch_first=True)
    mels = pad_sequence([torch.from_numpy(mel) for _, mel, _ in samples], batch_first=True)
    voices = [voice for _, _, voice in samples]
    voices = torch.tensor(np.array(voices)) if VARIANT == "b" else torch.tensor(voices)
    return texts, mels, voices


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH, padding_idx=0)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.join = nn.Linear(2 * WIDTH + VOICE, 2 * WIDTH)
        self.decoder = nn.GRU(2 * WIDTH + MELS, 2 * WIDTH, batch_first=True)
        self.out = nn.Linear(2 * WIDTH, MELS)

    def forward(self, texts, mels, voices):
        states, _ = self.encoder(self.letters(texts))
        voices = voices[:, None].expand(-1, states.shape[1], -1)
        states = torch.tanh(self.join(torch.cat([states, voices], dim=-1)))
        states = states.repeat_interleave(4, dim=1)[:, : mels.shape[1]]
        before = nn.functional.pad(mels[:, :-1], (0, 0, 1, 0))
        spoken, _ = self.decoder(torch.cat([states, before], dim=-1))
        return self.out(spoken)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Stories(), batch_size=8, shuffle=True, drop_last=True, collate_fn=collate)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while step < STEPS:
        for texts, mels, voices in loader:
            if step == 5:
                start = time.perf_counter()
            loss = nn.functional.l1_loss(model(texts, mels, voices), mels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
