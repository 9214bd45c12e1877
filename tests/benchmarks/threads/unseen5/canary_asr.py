"""A small Conformer tagging frames of log-mel features, time and frequency masks as augmentation."""

import os
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1200))
BATCH = int(os.environ.get("BATCH", 64))
FRAMES, MELS, VOCAB = 640, 80, 1024
device = torch.device(os.environ.get("DEVICE", "cuda"))


class SpecAugment(nn.Module):
    def __init__(self, freq_masks=2, time_masks=10, freq_width=27, time_width=32):
        super().__init__()
        self.freq_masks, self.time_masks = freq_masks, time_masks
        self.freq_width, self.time_width = freq_width, time_width
        self.rng = random.Random(11)

    def spans(self, count, size, width):
        for _ in range(count):
            start = self.rng.randint(0, size - width)
            yield start, start + self.rng.randint(0, width)

    @torch.no_grad()
    def forward(self, spec):
        if VARIANT == "b":
            return self.forward_batch(spec)
        for sample in range(spec.shape[0]):
            for start, stop in self.spans(self.freq_masks, MELS, self.freq_width):
                spec[sample, start:stop, :] = 0.0
            for start, stop in self.spans(self.time_masks, spec.shape[2], self.time_width):
                spec[sample, :, start:stop] = 0.0
        return spec

    def forward_batch(self, spec):
        bands, times = [], []
        for _ in range(spec.shape[0]):
            bands.append(list(self.spans(self.freq_masks, MELS, self.freq_width)))
            times.append(list(self.spans(self.time_masks, spec.shape[2], self.time_width)))
        bands = torch.tensor(bands).to(spec.device, non_blocking=True)
        times = torch.tensor(times).to(spec.device, non_blocking=True)
        mel = torch.arange(MELS, device=spec.device)
        frame = torch.arange(spec.shape[2], device=spec.device)
        rows = ((mel >= bands[..., :1]) & (mel < bands[..., 1:])).any(1)
        columns = ((frame >= times[..., :1]) & (frame < times[..., 1:])).any(1)
        return spec.masked_fill_(rows[:, :, None] | columns[:, None, :], 0.0)


class ConformerLayer(nn.Module):
    def __init__(self, dim, heads=4, kernel=31):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(5)])
        self.first = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.last = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.gate, self.point = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.depth = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.batch_norm = nn.BatchNorm1d(dim)

    def forward(self, x):
        x = x + 0.5 * self.first(self.norms[0](x))
        b, t, d = x.shape
        q, k, v = self.qkv(self.norms[1](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        y = F.glu(self.gate(self.norms[2](x)), dim=-1).transpose(1, 2)
        x = x + self.point(F.silu(self.batch_norm(self.depth(y))).transpose(1, 2))
        return self.norms[4](x + 0.5 * self.last(self.norms[3](x)))


class Recognizer(nn.Module):
    def __init__(self, dim=256, depth=16):
        super().__init__()
        self.augment = SpecAugment()
        self.subsample = nn.Sequential(
            nn.Conv1d(MELS, dim, 3, 2, 1), nn.SiLU(), nn.Conv1d(dim, dim, 3, 2, 1), nn.SiLU()
        )
        self.layers = nn.ModuleList([ConformerLayer(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, spec):
        x = self.subsample(self.augment(spec)).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    torch.manual_seed(0)
    model = Recognizer().to(device)
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=fused)
    features = torch.randn(4, BATCH, MELS, FRAMES, device=device)
    tokens = torch.randint(1, VOCAB, (4, BATCH, FRAMES // 4), device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(features[step % 4].clone())
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[step % 4].flatten())
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
