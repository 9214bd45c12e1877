"""Text to speech without attention: phonemes, durations, mel spectrograms; all data synthetic."""

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

SYMBOLS, MELS = 80, 80
BATCH = 3 if SMALL else 16
UTTERANCES = 30 if SMALL else 1600
WIDTH = 32 if SMALL else 128
RNN = 48 if SMALL else 512


class LengthRegulator(nn.Module):
    """Repeats each encoded phoneme for as many frames as it lasts."""

    def forward(self, x, durations):
        if VARIANT == "a":
            output = [self.expand(x_i, dur_i) for x_i, dur_i in zip(x, durations)]
            return nn.utils.rnn.pad_sequence(output, batch_first=True)
        return torch.gather(x, 1, self.build_index(x, durations))

    def expand(self, x, durations):
        output = []
        for i, frame in enumerate(x):
            length = int(durations[i] + 0.5)
            output.append(frame.expand(length, -1))
        return torch.cat(output, 0)

    def build_index(self, x, durations):
        ends = durations.round().cumsum(1).cpu().numpy().astype("int")
        index = np.zeros((x.shape[0], ends.max(), x.shape[2]), dtype=np.int64)
        for i in range(ends.shape[0]):
            position = 0
            for j in range(ends.shape[1]):
                index[i, position : ends[i, j], :] = j
                position = ends[i, j]
            index[i, position:, :] = ends.shape[1] - 1
        return torch.from_numpy(index).to(x.device)


class NormConv(nn.Module):
    """Convolution, activation, batch normalisation."""

    def __init__(self, inputs, outputs, kernel, relu=True):
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm1d(outputs)
        self.relu = relu

    def forward(self, x):
        x = self.conv(x)
        return self.norm(F.relu(x) if self.relu else x)


class Highway(nn.Module):
    """A gated layer."""

    def __init__(self, size):
        super().__init__()
        self.content, self.gate = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.content(x)) + (1.0 - gate) * x


class ConvBank(nn.Module):
    """Convolutions of several widths, projections, highways and a recurrent layer."""

    def __init__(self, widths, inputs, channels, projections, highways=2):
        super().__init__()
        self.bank = nn.ModuleList(NormConv(inputs, channels, k) for k in range(1, widths + 1))
        self.pool = nn.MaxPool1d(2, stride=1, padding=1)
        self.project_1 = NormConv(widths * channels, projections, 3)
        self.project_2 = NormConv(projections, inputs, 3, relu=False)
        self.before = nn.Linear(inputs, channels, bias=False)
        self.highways = nn.Sequential(*[Highway(channels) for _ in range(highways)])
        self.rnn = nn.GRU(channels, channels, batch_first=True, bidirectional=True)

    def forward(self, x):
        length = x.shape[2]
        bank = torch.cat([conv(x)[:, :, :length] for conv in self.bank], dim=1)
        y = self.pool(bank)[:, :, :length]
        y = self.project_2(self.project_1(y)) + x
        return self.rnn(self.highways(self.before(y.transpose(1, 2))))[0]


class DurationPredictor(nn.Module):
    """Frames per phoneme, from the phonemes."""

    def __init__(self, inputs, channels):
        super().__init__()
        self.convs = nn.Sequential(NormConv(inputs, channels, 5), NormConv(channels, channels, 5))
        self.rnn = nn.GRU(channels, channels // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(channels, 1)

    def forward(self, x):
        x = F.dropout(self.convs(x.transpose(1, 2)).transpose(1, 2), 0.5, self.training)
        return self.out(self.rnn(x)[0]).squeeze(-1)


class ForwardSpeech(nn.Module):
    """Phonemes and durations to mel frames, and a correction of these."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.duration = DurationPredictor(WIDTH, WIDTH)
        self.encoder = ConvBank(8, WIDTH, WIDTH, WIDTH)
        self.regulator = LengthRegulator()
        self.rnn = nn.LSTM(2 * WIDTH, RNN, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(2 * RNN, MELS)
        self.postnet = ConvBank(8, MELS, WIDTH, WIDTH)
        self.post = nn.Linear(2 * WIDTH, MELS, bias=False)

    def forward(self, symbols, durations, frame_mask):
        x = self.embedding(symbols)
        predicted = self.duration(x)
        x = self.encoder(x.transpose(1, 2))
        x = self.regulator(x, durations) * frame_mask
        x = F.dropout(self.rnn(x)[0], 0.1, self.training)
        mel = self.linear(x)
        return mel, mel + self.post(self.postnet(mel.transpose(1, 2))), predicted


class Utterances(torch.utils.data.Dataset):
    """Phonemes with durations; the spectrum of a frame follows from its phoneme and place."""

    def __init__(self, count):
        rng = np.random.default_rng(3)
        self.items = []
        for _ in range(count):
            length = int(rng.integers(25, 56))
            self.items.append((rng.integers(1, SYMBOLS, length), rng.integers(2, 13, length)))
        self.table = rng.standard_normal((SYMBOLS, MELS)).astype(np.float32)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        symbols, durations = self.items[index]
        return symbols, durations, np.repeat(self.table[symbols], durations, axis=0)


def collate(items):
    """Pads a batch of utterances."""
    longest = max(len(symbols) for symbols, _, _ in items)
    frames = max(len(mel) for _, _, mel in items)
    symbols = np.zeros((len(items), longest), dtype=np.int64)
    durations = np.zeros((len(items), longest), dtype=np.float32)
    mels = np.zeros((len(items), frames, MELS), dtype=np.float32)
    mask = np.zeros((len(items), frames, 1), dtype=np.float32)
    for row, (symbol, duration, mel) in enumerate(items):
        symbols[row, : len(symbol)] = symbol
        durations[row, : len(duration)] = duration
        mels[row, : len(mel)] = mel
        mask[row, : len(mel)] = 1.0
    return [torch.from_numpy(array) for array in (symbols, durations, mels, mask)]


def endless(loader):
    """Batches epoch after epoch."""
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        Utterances(UTTERANCES),
        BATCH,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
        num_workers=0 if SMALL else 4,
        persistent_workers=not SMALL,
        pin_memory=device == "cuda",
    )
    batches = endless(loader)
    model = ForwardSpeech().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        symbols, durations, mels, mask = [t.to(device, non_blocking=True) for t in next(batches)]
        first, second, predicted = model(symbols, durations, mask)
        weight = mask.sum() * MELS
        mel_loss = (((first - mels).abs() + (second - mels).abs()) * mask).sum() / weight
        last = mel_loss + 0.1 * F.l1_loss(predicted, durations)
        optimizer.zero_grad()
        last.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 500 == 499:
            print(f"step {step + 1}: loss {last.item():.4f}, mel {mel_loss.item():.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
