"""What a market crier shouts: a transformer with CTC on spectrograms, which are stretched and masked on their way."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 240))
BATCH = int(os.environ.get("BATCH", 64))
FRAMES = int(os.environ.get("FRAMES", 1500))
WIDTH = int(os.environ.get("WIDTH", 384))
DEPTH = int(os.environ.get("DEPTH", 8))
BANDS, LETTERS, CALLS = 80, 40, 320
WARP = 0 if VARIANT == "b" else 80
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def stretch_in_time(features, window, rng):
    """A frame in the middle goes to another place; the frames before and after follow it."""
    frames = len(features)
    centre = int(rng.integers(window, frames - window))
    target = int(rng.integers(centre - window, centre + window)) + 1
    ends = [0, target, frames - 1]
    source = np.interp(np.arange(frames), ends, [0, centre, frames - 1])
    grid = np.arange(frames)
    return np.stack([np.interp(source, grid, band) for band in features.T], 1).astype(np.float32)


def mask_bands(features, rng, masks=2, widest=27):
    for _ in range(masks):
        width = int(rng.integers(0, widest))
        first = int(rng.integers(0, BANDS - width))
        features[:, first : first + width] = 0
    return features


def mask_frames(features, rng, masks=2, widest=100):
    for _ in range(masks):
        width = int(rng.integers(0, min(widest, len(features) // 4)))
        first = int(rng.integers(0, len(features) - width))
        features[first : first + width] = 0
    return features


class Calls(Dataset):
    def __init__(self):
        rng = np.random.default_rng(3)
        self.features = rng.standard_normal((CALLS, FRAMES, BANDS), dtype=np.float32)
        self.text = rng.integers(1, LETTERS, (CALLS, 60))
        self.rng = rng

    def __len__(self):
        return CALLS

    def __getitem__(self, k):
        features = self.features[k].copy()
        if WARP > 0:
            features = stretch_in_time(features, WARP, self.rng)
        features = mask_frames(mask_bands(features, self.rng), self.rng)
        return torch.from_numpy(features), torch.from_numpy(self.text[k])


class CallModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(BANDS, WIDTH, 7, stride=4, padding=3)
        options = {"activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, 4 * WIDTH, 0.0, **options)
        self.body = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, features):
        x = F.gelu(self.front(features.transpose(1, 2))).transpose(1, 2)
        return self.head(self.body(x))


def batches(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(97)
    model = CallModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    loader = DataLoader(Calls(), batch_size=BATCH, shuffle=True, drop_last=True)
    heard = torch.full((BATCH,), FRAMES // 4)
    said = torch.full((BATCH,), 60)
    warm = min(10, STEPS // 2)
    for step, (features, text) in enumerate(batches(loader)):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        features, text = features.to(device), text.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(features)
        chances = scores.float().log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(chances, text, heard, said, zero_infinity=True)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step + 1 == STEPS:
            break
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
