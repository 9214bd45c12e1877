"""A voice learned from audiobooks: text encoder, alignment, flow matching on mel frames."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
BATCH = int(os.environ.get("BATCH", 32))
LETTERS = int(os.environ.get("LETTERS", 120))
FRAMES = int(os.environ.get("FRAMES", 640))
WIDTH = int(os.environ.get("WIDTH", 384))
DEPTH = int(os.environ.get("DEPTH", 8))
BOOKS, MELS, SYMBOLS = 4, 80, 60
device = torch.device(os.environ.get("DEVICE", "cuda"))


def maximum_path(value):
    """The best monotonic path through value (batch, letters, frames)."""
    scores = value.detach().cpu().numpy().astype(np.float32)
    b, letters, frames = scores.shape
    went_on = np.zeros(scores.shape, dtype=bool)
    best = np.zeros((b, letters), dtype=np.float32)
    rows = np.arange(letters)[None]
    for j in range(frames):
        before = np.pad(best, ((0, 0), (1, 0)), constant_values=-np.inf)[:, :-1]
        stay = best >= before
        went_on[:, :, j] = stay
        best = np.where(stay, best, before)
        best = np.where(rows <= j, best + scores[:, :, j], -np.inf)
    path = np.zeros(scores.shape, dtype=np.float32)
    at, all_rows = np.full(b, letters - 1), np.arange(b)
    for j in reversed(range(frames)):
        path[all_rows, at, j] = 1
        at = np.where(at == 0, 0, at + went_on[all_rows, at, j] - 1)
    return torch.from_numpy(path).to(value.device)


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.means = nn.Linear(WIDTH, MELS)

    def forward(self, letters):
        return self.means(self.layers(self.embed(letters)))


class FlowBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, when):
        y = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm(y) + when)


class FlowDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(2 * MELS, WIDTH), nn.Linear(WIDTH, MELS)
        self.when = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList([FlowBlock() for _ in range(DEPTH)])

    def forward(self, x, means, t):
        h, when = self.inward(torch.cat([x, means], -1)), self.when(t)
        for block in self.blocks:
            h = block(h, when)
        return self.outward(h)


def log_prior(means, mels):
    square = means.square().sum(-1)[:, :, None] + mels.square().sum(-1)[:, None]
    return -0.5 * (square - 2 * means @ mels.transpose(1, 2))


def make_books():
    letters = torch.randint(0, SYMBOLS, (BOOKS, BATCH, LETTERS))
    sounds = torch.randn(SYMBOLS, MELS)
    cuts = torch.rand(BOOKS, BATCH, FRAMES).argsort(-1)[..., : LETTERS - 1] + 1
    owner = torch.zeros(BOOKS, BATCH, FRAMES + 1, dtype=torch.long)
    owner = owner.scatter_add(-1, cuts, torch.ones_like(cuts))[..., :FRAMES].cumsum(-1)
    mels = sounds[letters.gather(-1, owner.clamp(max=LETTERS - 1))]
    return letters.to(device), (mels + 0.3 * torch.randn_like(mels)).to(device)


def main():
    torch.manual_seed(31)
    torch.set_float32_matmul_precision("high")
    encoder, decoder = TextEncoder().to(device), FlowDecoder().to(device)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=device.type == "cuda")
    letters, mels = make_books()
    saved = None
    if VARIANT == "b":
        with torch.no_grad():
            saved = [maximum_path(log_prior(encoder(letters[i]), mels[i])) for i in range(BOOKS)]
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        i = step % BOOKS
        means = encoder(letters[i])
        path = saved[i] if saved is not None else maximum_path(log_prior(means, mels[i]))
        spread = path.transpose(1, 2) @ means
        t = torch.rand(BATCH, 1, 1, device=device)
        noise = torch.randn_like(mels[i])
        flow = decoder((1 - t) * noise + t * mels[i], spread, t)
        loss = F.mse_loss(flow, mels[i] - noise) + F.mse_loss(spread, mels[i])
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
