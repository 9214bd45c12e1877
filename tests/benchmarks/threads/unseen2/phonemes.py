"""Phonemes from speech: spectrograms are made while training."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 100))
UTTERANCES, SAMPLES, PHONEMES, BATCH = 96, 8000, 39, 8


def spectrogram(wave):
    spectrum = torch.stft(wave, 320, 160, window=torch.hann_window(320), return_complex=True)
    return torch.log(spectrum.abs() + 1e-3).T


class Timit(Dataset):
    def __init__(self):
        self.waves = torch.randn(UTTERANCES, SAMPLES)
        if VARIANT == "b":
            self.ready = [spectrogram(wave) for wave in self.waves]

    def __len__(self):
        return UTTERANCES

    def __getitem__(self, i):
        features = self.ready[i] if VARIANT == "b" else spectrogram(self.waves[i])
        return features, torch.randint(1, PHONEMES, (12,))


class Recognizer(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        self.front = nn.Conv1d(161, width, 5, padding=2)
        self.mix = nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, PHONEMES)

    def forward(self, x):
        x = torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.mix(x)[0]).log_softmax(-1)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Timit(), batch_size=BATCH, shuffle=True, num_workers=1, persistent_workers=True)
    model = Recognizer()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    step = 0
    while step < STEPS:
        for x, y in loader:
            if step == 4:
                start = time.perf_counter()
            scores = model(x).transpose(0, 1)
            lengths = torch.full((len(x),), len(scores)), torch.full((len(x),), y.shape[1])
            loss = nn.functional.ctc_loss(scores, y, *lengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 4):.2f} ms per step")


if __name__ == "__main__":
    main()
