"""Turns notes into a spectrogram: tokens of a few seconds of MIDI in, mel frames out."""

import os
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 70))
EVENTS, WIDTH, MOST, FRAMES, MELS, PAD = 600, 96, 512, 64, 64, 0


class Segments(Dataset):
    def __init__(self, count=2000):
        rng = random.Random(0)
        self.notes = [
            [rng.randrange(1, EVENTS) for _ in range(min(MOST, int(rng.gammavariate(3, 22)) + 8))]
            for _ in range(count)
        ]
        self.mels = torch.randn(count, FRAMES, MELS)

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, i):
        return torch.tensor(self.notes[i]), self.mels[i]


def collate(segments):
    tokens, mels = zip(*segments, strict=True)
    length = MOST if VARIANT == "a" else max(len(t) for t in tokens)
    padded = torch.full((len(tokens), length), PAD)
    for row, t in zip(padded, tokens, strict=True):
        row[: len(t)] = t
    return padded, torch.stack(mels)


class Synth(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(EVENTS, WIDTH, padding_idx=PAD)
        self.place = nn.Parameter(0.02 * torch.randn(MOST, WIDTH))
        self.query = nn.Parameter(0.02 * torch.randn(FRAMES, WIDTH))
        encoder = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        decoder = nn.TransformerDecoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, 2)
        self.mel = nn.Linear(WIDTH, MELS)

    def forward(self, tokens):
        blank = tokens == PAD
        notes = self.embed(tokens) + self.place[: tokens.shape[1]]
        notes = self.encoder(notes, src_key_padding_mask=blank)
        frames = self.query.expand(len(tokens), -1, -1)
        return self.mel(self.decoder(frames, notes, memory_key_padding_mask=blank))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Segments(), batch_size=4, shuffle=True, collate_fn=collate)
    model = Synth()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    step = 0
    while step < STEPS:
        for tokens, mels in loader:
            if step == 3:
                start = time.perf_counter()
            loss = nn.functional.mse_loss(model(tokens), mels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 3):.2f} ms per step")


if __name__ == "__main__":
    main()
