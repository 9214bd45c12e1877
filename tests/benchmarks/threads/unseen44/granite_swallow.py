"""Speech from text: an attention decoder that emits one mel frame after the other."""

import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1400))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

RATE, FFT, HOP = 16_000, 1024, 256
MELS = 16 if SMALL else 80
SECONDS = (0.3, 0.5) if SMALL else (2.6, 3.2)
CLIPS = 16 if SMALL else 256
BATCH = 4 if SMALL else 32
WORKERS = 2 if SMALL else 8
WIDTH = 32 if SMALL else 256
LETTERS = 40
LOG_EVERY = 50
EVAL_EVERY = 400


class AudioProcessor:
    """Spectrograms of a waveform: linear and mel, in decibels, scaled to [0, 1]."""

    def __init__(self):
        self.window = np.hanning(FFT + 1)[:-1].astype(np.float32)
        points = 700 * (10 ** (np.linspace(0, 2595 * math.log10(1 + RATE / 1400), MELS + 2) / 2595) - 1)
        bins = np.linspace(0, RATE / 2, FFT // 2 + 1)
        left, centre, right = points[:-2, None], points[1:-1, None], points[2:, None]
        rise, fall = (bins - left) / (centre - left), (right - bins) / (right - centre)
        self.basis = torch.from_numpy(np.maximum(0, np.minimum(rise, fall)).T.astype(np.float32))

    def magnitude(self, wav):
        count = 1 + (len(wav) - FFT) // HOP
        frames = np.lib.stride_tricks.as_strided(wav, (count, FFT), (HOP * wav.itemsize, wav.itemsize))
        return np.abs(np.fft.rfft(frames * self.window, axis=1)).astype(np.float32)

    def scale(self, magnitude):
        return ((20 * np.log10(np.maximum(1e-5, magnitude)) + 100) / 160).clip(0, 1).astype(np.float32)

    def spectrogram(self, wav):
        return self.scale(self.magnitude(wav))

    def melspectrogram(self, wav):
        return self.scale((torch.from_numpy(self.magnitude(wav)) @ self.basis).numpy())


class SpeechDataset(Dataset):
    """Letters and waveforms; each letter is a tone of its own."""

    def __init__(self, processor, seed=0):
        rng = np.random.default_rng(seed)
        self.ap, self.items, self.kept = processor, [], None
        for _ in range(CLIPS):
            samples = int(rng.uniform(*SECONDS) * RATE)
            text = rng.integers(1, LETTERS, size=samples // 1600)
            pitch = np.repeat(100.0 + 80 * text, math.ceil(samples / len(text)))[:samples]
            wav = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + 0.05 * rng.standard_normal(samples)
            self.items.append((text, (0.5 * wav).astype(np.float32)))
        if VARIANT != "a":
            self.kept = [self.features(wav) for _, wav in self.items]

    def features(self, wav):
        return self.ap.melspectrogram(wav), self.ap.spectrogram(wav)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return index

    def collate_fn(self, indices):
        """Pads text, mel and linear spectrograms to the longest of the batch."""
        text = [torch.from_numpy(self.items[i][0]) for i in indices]
        if self.kept is None:
            pairs = [self.features(self.items[i][1]) for i in indices]
        else:
            pairs = [self.kept[i] for i in indices]
        pad = nn.utils.rnn.pad_sequence
        return (
            pad(text, batch_first=True),
            pad([torch.from_numpy(m) for m, _ in pairs], batch_first=True),
            pad([torch.from_numpy(s) for _, s in pairs], batch_first=True),
            torch.tensor([len(m) for m, _ in pairs]),
        )


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 5, padding=2) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(3))
        self.rnn = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)

    def forward(self, text):
        x = self.embed(text).transpose(1, 2)
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        return self.rnn(x.transpose(1, 2))[0]


class Decoder(nn.Module):
    """Two recurrent cells with additive attention, fed with the true frame before."""

    def __init__(self):
        super().__init__()
        self.prenet = nn.Sequential(nn.Linear(MELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.attention_rnn = nn.LSTMCell(2 * WIDTH, WIDTH)
        self.query, self.keys = nn.Linear(WIDTH, 128), nn.Linear(WIDTH, 128)
        self.energy = nn.Linear(128, 1, bias=False)
        self.decoder_rnn = nn.LSTMCell(2 * WIDTH, WIDTH)
        self.project = nn.Linear(2 * WIDTH, MELS)

    def forward(self, memory, mask, mel):
        frames = self.prenet(F.pad(mel, (0, 0, 1, 0))[:, :-1])
        keys = self.keys(memory)
        zero = memory.new_zeros(len(memory), WIDTH)
        h1, c1, h2, c2, context = zero, zero, zero, zero, zero
        outputs = []
        for t in range(frames.shape[1]):
            h1, c1 = self.attention_rnn(torch.cat([frames[:, t], context], dim=1), (h1, c1))
            score = self.energy(torch.tanh(self.query(h1)[:, None] + keys)).squeeze(-1)
            weights = score.masked_fill(mask, -1e4).softmax(dim=1)
            context = torch.bmm(weights[:, None], memory).squeeze(1)
            h2, c2 = self.decoder_rnn(torch.cat([h1, context], dim=1), (h2, c2))
            outputs.append(torch.cat([h2, context], dim=1))
        return self.project(torch.stack(outputs, dim=1))


class Tacotron(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = TextEncoder(), Decoder()
        self.postnet = nn.GRU(MELS, WIDTH // 2, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(WIDTH, FFT // 2 + 1)

    def forward(self, text, mel):
        out = self.decoder(self.encoder(text), text == 0, mel)
        return out, self.linear(self.postnet(out)[0])


def loss_of(model, batch):
    text, mel, linear, lengths = (t.to(device, non_blocking=True) for t in batch)
    inside = (torch.arange(mel.shape[1], device=device)[None] < lengths[:, None])[..., None]
    mel_out, linear_out = model(text, mel)
    weight = inside / inside.sum()
    return (
        ((mel_out - mel).abs().mean(-1, keepdim=True) + (linear_out - linear).abs().mean(-1, keepdim=True))
        * weight
    ).sum()


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    dataset = SpeechDataset(AudioProcessor())
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        collate_fn=dataset.collate_fn,
        pin_memory=device == "cuda",
        persistent_workers=True,
    )
    model = Tacotron().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9995)
    held = dataset.collate_fn(range(BATCH))
    warm = min(10, STEPS // 2)
    stream = endless(loader)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = next(stream)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.2e}")
        if (step + 1) % EVAL_EVERY == 0:
            with torch.no_grad():
                print(f"step {step + 1} held out {loss_of(model, held).item():.4f}")
        last = loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
