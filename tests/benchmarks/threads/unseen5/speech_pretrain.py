"""Self-supervised speech: spans of the latent frames are hidden and predicted from the rest."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
BATCH = int(os.environ.get("BATCH", 16))
SECONDS = int(os.environ.get("SECONDS", 10))
WIDTH, DEPTH, SPAN, SHARE = 768, 12, 10, 0.065
device = torch.device(os.environ.get("DEVICE", "cuda"))


def compute_mask_indices(shape, rng):
    batch, length = shape
    mask = np.zeros(shape, dtype=bool)
    for row in range(batch):
        count = int(SHARE * length + rng.random())
        starts = rng.choice(length - SPAN + 1, count, replace=False)
        hidden = np.concatenate([np.arange(start, start + SPAN) for start in starts])
        mask[row, np.unique(hidden)] = True
    return torch.from_numpy(mask)


def compute_mask_on(where, shape):
    batch, length = shape
    count = int(SHARE * length + 0.5)
    starts = torch.rand(batch, length - SPAN + 1, device=where).topk(count).indices
    hidden = (starts[:, :, None] + torch.arange(SPAN, device=where)).flatten(1)
    return torch.zeros(shape, dtype=torch.bool, device=where).scatter_(1, hidden, True)


class Features(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        shapes = [(1, 10, 5)] + [(width, 3, 2)] * 4 + [(width, 2, 2)] * 2
        self.convs = nn.ModuleList([nn.Conv1d(n, width, k, s, bias=False) for n, k, s in shapes])
        self.norm = nn.GroupNorm(width, width)

    def forward(self, audio):
        x = F.gelu(self.norm(self.convs[0](audio[:, None])))
        for conv in self.convs[1:]:
            x = F.gelu(conv(x))
        return x.transpose(1, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, d // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = self.norm1(x + self.out(y))
        return self.norm2(x + self.mlp(x))


class SpeechModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = Features()
        self.project, self.target = nn.Linear(512, WIDTH), nn.Linear(512, 256)
        self.hidden = nn.Parameter(torch.rand(WIDTH))
        self.place = nn.Conv1d(WIDTH, WIDTH, 128, padding=64, groups=16)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.predict = nn.Linear(WIDTH, 256)
        self.rng = np.random.default_rng(7)

    def forward(self, audio):
        latent = self.features(audio)
        x = self.project(latent)
        if VARIANT == "b":
            mask = compute_mask_on(x.device, x.shape[:2])
        else:
            mask = compute_mask_indices(x.shape[:2], self.rng).to(x.device)
        x = torch.where(mask[..., None], self.hidden.to(x.dtype), x)
        x = self.blocks(x + F.gelu(self.place(x.transpose(1, 2))[..., :-1]).transpose(1, 2))
        guess = F.normalize(self.predict(x).float(), dim=-1)
        truth = F.normalize(self.target(latent).float(), dim=-1)
        scores = guess @ truth.transpose(1, 2) / 0.1
        rows = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        losses = F.cross_entropy(scores.transpose(1, 2), rows, reduction="none")
        return (losses * mask).sum() / mask.sum()


def main():
    torch.manual_seed(0)
    model = SpeechModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    audio = torch.randn(4, BATCH, 16_000 * SECONDS, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(audio[step % 4])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
