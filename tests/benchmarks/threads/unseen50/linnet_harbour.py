"""Train a time-domain speech enhancement network, frame by frame, on noisy recordings kept as wave files.

A convolutional gate mixes the noisy frame with a state, an encoder and dilated gated blocks follow, and a
decoder returns the clean frame.  Recordings are read, cut to a fixed length and framed for each batch.
"""

import os
import tempfile
import time
import wave

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL", "0") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

RATE = 16000
SAMPLES = 4000 if SMALL else 32000
FRAME, SHIFT = (512, 256) if SMALL else (2048, 256)
UTTERANCES = 2 if SMALL else 6
RECORDINGS = 12 if SMALL else 120
BATCHES_PER_EPOCH = 10 if SMALL else 400
CV_EVERY, PRINT_EVERY = (5, 10) if SMALL else (400, 100)
WORKERS = 2 if SMALL else 8


def write_wave(path, signal):
    """Write one mono recording with 16 bits per sample."""
    with wave.open(path, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", "not compressed"))
        out.writeframes((np.clip(signal, -1, 1) * 32767).astype(np.int16).tobytes())


def read_wave(path):
    """Read one recording as numbers between -1 and 1."""
    with wave.open(path, "rb") as source:
        raw = source.readframes(source.getnframes())
    return np.frombuffer(raw, dtype=np.int16).astype(np.float64) / 32768.0


def make_corpus(folder):
    """Write pairs of noisy and clean recordings and return their paths."""
    rng = np.random.default_rng(1)
    pairs = []
    for number in range(RECORDINGS):
        length = int(rng.integers(SAMPLES * 3 // 4, SAMPLES * 2))
        t = np.arange(length) / RATE
        pitch = rng.uniform(90, 240)
        clean = sum(np.sin(2 * np.pi * pitch * k * t) / k for k in range(1, 5)) * 0.15
        mix = clean + rng.standard_normal(length) * 0.05
        pairs.append([os.path.join(folder, f"{kind}{number:04d}.wav") for kind in ("mix", "clean")])
        write_wave(pairs[-1][0], mix)
        write_wave(pairs[-1][1], clean)
    return pairs


class SignalToFrames:
    """Cut a signal into frames that overlap."""

    def __init__(self, frame_size, frame_shift):
        self.frame_size, self.frame_shift = frame_size, frame_shift

    def __call__(self, signal):
        length = len(signal)
        frames = length // self.frame_shift
        out = np.zeros([frames, self.frame_size])
        start, end = 0, self.frame_size
        for i in range(frames):
            if end < length:
                out[i, :] = signal[start:end]
            else:
                out[i, : length - start] = signal[start:]
            start += self.frame_shift
            end = start + self.frame_size
        return out


def make_minibatches(pairs, batches, seed):
    """List the minibatches: each has some pairs of paths, and the seed of its cuts."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(pairs), (batches, UTTERANCES))
    return [([pairs[k] for k in row], seed * 100003 + number) for number, row in enumerate(chosen)]


def to_batch(items):
    """Read, cut and frame the recordings of one minibatch."""
    pairs, seed = items[0]
    rng = np.random.default_rng(seed)
    to_frames = SignalToFrames(FRAME, SHIFT)
    feats, labels = [], []
    for mix_path, clean_path in pairs:
        mix, clean = read_wave(mix_path), read_wave(clean_path)
        if len(mix) > SAMPLES:
            start = int(rng.integers(0, len(mix) - SAMPLES))
            mix, clean = mix[start : start + SAMPLES], clean[start : start + SAMPLES]
        else:
            rest = np.zeros(SAMPLES - len(mix))
            mix, clean = np.concatenate((mix, rest)), np.concatenate((clean, rest))
        feats.append(to_frames(mix))
        labels.append(to_frames(clean))
    feats = torch.FloatTensor(np.concatenate(feats, axis=0))
    labels = torch.FloatTensor(np.concatenate(labels, axis=0))
    if VARIANT == "a":
        return feats.to(device), labels.to(device)
    return feats, labels


def make_loader(dataset):
    """Make one loader, for training or for validation."""
    if VARIANT == "a":
        return DataLoader(dataset, batch_size=1, shuffle=False, num_workers=0, collate_fn=to_batch)
    more = {"num_workers": WORKERS, "persistent_workers": True, "pin_memory": device == "cuda"}
    return DataLoader(dataset, batch_size=1, shuffle=False, collate_fn=to_batch, **more)


class Gated(nn.Module):
    """Dilated convolutions with a gate and a shortcut."""

    def __init__(self, dilation):
        super().__init__()
        pad = dilation * 5
        self.before, self.after = nn.Conv1d(128, 64, 1), nn.Conv1d(64, 128, 1)
        self.left = nn.Sequential(nn.PReLU(64), nn.Conv1d(64, 64, 11, padding=pad, dilation=dilation))
        self.right = nn.Sequential(nn.PReLU(64), nn.Conv1d(64, 64, 11, padding=pad, dilation=dilation))
        self.act = nn.PReLU(128)

    def forward(self, x):
        y = self.before(x)
        return self.act(self.after(self.left(y) * torch.sigmoid(self.right(y))) + x)


class Enhancer(nn.Module):
    """Recurrent gate, encoder, gated blocks and decoder."""

    def __init__(self):
        super().__init__()
        self.pre = nn.Sequential(nn.Conv1d(2, 16, 11, stride=2, padding=5), nn.PReLU(16))
        self.update, self.reset, self.new = (nn.Conv1d(32, 16, 11, padding=5) for _ in range(3))
        sizes = [(16, 16, 1), (16, 32, 2), (32, 64, 2), (64, 128, 2)]
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 11, stride=s, padding=5), nn.PReLU(b)) for a, b, s in sizes
        )
        self.blocks = nn.ModuleList(Gated(2**i) for i in range(6))
        up = [(256, 64), (128, 32), (64, 16), (32, 1)]
        self.up = nn.ModuleList(nn.ConvTranspose1d(a, b, 11, 2, padding=5, output_padding=1) for a, b in up)

    def forward(self, mixture):
        mixture = mixture.unsqueeze(1)
        x = self.pre(torch.cat((mixture, mixture), dim=1))
        h = torch.zeros(x.shape).to(x.device) if VARIANT == "a" else torch.zeros(x.shape, device=x.device)
        both = torch.cat((x, h), dim=1)
        z, r = torch.sigmoid(self.update(both)), torch.sigmoid(self.reset(both))
        x = (1 - z) * h + z * torch.tanh(self.new(torch.cat((r * h, x), dim=1)))
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        skip = torch.zeros(x.shape).to(x.device) if VARIANT == "a" else torch.zeros(x.shape, device=x.device)
        for block in self.blocks:
            x = block(x)
            skip = skip + x
        x = skip
        for layer in self.up:
            x = layer(torch.cat((x, kept.pop()), dim=1))
        return torch.tanh(x).squeeze(1)


def validate(model, loader):
    """Mean absolute error on the validation recordings."""
    model.eval()
    with torch.no_grad():
        errors = [(model(f.to(device)) - c.to(device)).abs().mean() for f, c in loader]
    model.train()
    return torch.stack(errors).mean().item()


def main():
    with tempfile.TemporaryDirectory() as folder:
        pairs = make_corpus(folder)
        loader = make_loader(make_minibatches(pairs, BATCHES_PER_EPOCH, 2))
        cv_loader = make_loader(make_minibatches(pairs, 2, 3))
        model = Enhancer().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
        warm = min(10, STEPS // 2)
        step, total, last, begin = 0, 0.0, torch.zeros(()), 0.0
        while step < STEPS:
            for feats, labels in loader:
                if step == warm:
                    if device == "cuda":
                        torch.cuda.synchronize()
                    begin = time.perf_counter()
                feats, labels = feats.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                last = (model(feats) - labels).abs().mean()
                optimizer.zero_grad()
                last.backward()
                optimizer.step()
                total += last.item()
                if step % PRINT_EVERY == 0:
                    print(f"iter {step} average {total / (step + 1):.5f}")
                if step % CV_EVERY == CV_EVERY - 1:
                    print(f"iter {step} validation {validate(model, cv_loader):.5f}")
                step += 1
                if step == STEPS:
                    break
        if device == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - begin
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
