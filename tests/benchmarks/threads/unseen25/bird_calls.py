"""Trains a convolutional network that names birds by recordings of many lengths."""

import os
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "500"))
BATCH = int(os.environ.get("BATCH", "32"))
SHORTEST = int(os.environ.get("SHORTEST", "60000"))
LONGEST = int(os.environ.get("LONGEST", "160000"))
RECORDINGS = int(os.environ.get("RECORDINGS", "300"))
WORKERS = int(os.environ.get("WORKERS", "8"))
WIDTH = int(os.environ.get("WIDTH", "512"))
BIRDS = 30
BUCKETS = 5


class BirdCalls(Dataset):
    """Recordings, packed as differences of successive samples."""

    def __init__(self, recordings, shortest, longest):
        rng = np.random.default_rng(4)
        self.lengths = rng.integers(shortest, longest, recordings)
        self.birds = rng.integers(0, BIRDS, recordings)
        self.packed = [self.record(rng, length, bird) for length, bird in zip(self.lengths, self.birds)]

    @staticmethod
    def record(rng, length, bird):
        tone = 400 * np.sin(np.arange(length) * (0.02 + 0.004 * bird))
        wave = (tone + rng.normal(0, 8, length)).astype(np.int16)
        return zlib.compress(np.diff(wave, prepend=np.int16(0)).tobytes(), 1)

    def __len__(self):
        return len(self.packed)

    def __getitem__(self, index):
        steps = np.frombuffer(zlib.decompress(self.packed[index]), dtype=np.int16)
        wave = np.cumsum(steps, dtype=np.int32).astype(np.float32)
        wave = (wave - wave.mean()) / (wave.std() + 1e-5)
        return torch.from_numpy(wave), int(self.birds[index])


class LengthSampler(Sampler):
    """Batches of recordings that are about equally long."""

    def __init__(self, calls, batch, steps):
        self.calls, self.batch, self.steps = calls, batch, steps
        self.edges = np.linspace(SHORTEST, LONGEST, BUCKETS + 1)[1:-1]

    def __len__(self):
        return self.steps

    def length_of(self, index):
        if VARIANT == "a":
            wave, _ = self.calls[index]
            return len(wave)
        return self.calls.lengths[index]

    def __iter__(self):
        rng = np.random.default_rng(8)
        waiting, given = [[] for _ in range(BUCKETS)], 0
        while given < self.steps:
            for index in rng.permutation(len(self.calls)):
                bucket = waiting[np.searchsorted(self.edges, self.length_of(index))]
                bucket.append(index)
                if len(bucket) == self.batch and given < self.steps:
                    yield bucket[:]
                    bucket.clear()
                    given += 1


def pad(items):
    waves, birds = zip(*items)
    return nn.utils.rnn.pad_sequence(waves, batch_first=True), torch.tensor(birds)


class BirdNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, width // 4, 16, stride=8),
            nn.BatchNorm1d(width // 4),
            nn.ReLU(),
            nn.Conv1d(width // 4, width, 8, stride=4),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, stride=2),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Conv1d(2 * width, 2 * width, 5, stride=2),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, BIRDS)

    def forward(self, waves):
        return self.head(self.layers(waves[:, None]).mean(dim=2))


def main():
    torch.manual_seed(6)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    calls = BirdCalls(RECORDINGS, SHORTEST, LONGEST)
    sampler = LengthSampler(calls, BATCH, STEPS)
    loader = DataLoader(calls, batch_sampler=sampler, num_workers=WORKERS, collate_fn=pad, pin_memory=cuda)
    net = BirdNet(WIDTH).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=cuda)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step, (waves, birds) in enumerate(loader):
        if step == warm:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        waves, birds = waves.to(device, non_blocking=True), birds.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            scores = net(waves)
        loss = F.cross_entropy(scores.float(), birds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if cuda:
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
