"""Train a small speech synthesiser with a soft aligner on short utterances."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.stats import betabinom
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "330"))
BATCH = int(os.environ.get("BATCH", "24"))
WIDTH = int(os.environ.get("WIDTH", "1024"))
LAYERS = int(os.environ.get("LAYERS", "8"))
WORKERS = int(os.environ.get("WORKERS", "10"))
N_MEL, N_SYMBOLS = 80, 96

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def align_prior_scipy(phoneme_count, mel_count, scaling=1.0):
    x = np.arange(0, phoneme_count)
    mel_text_probs = []
    for i in range(1, mel_count + 1):
        a, b = scaling * i, scaling * (mel_count + 1 - i)
        mel_text_probs.append(betabinom(phoneme_count - 1, a, b).pmf(x))
    return torch.tensor(np.array(mel_text_probs), dtype=torch.float32)


def log_beta(x, y):
    return torch.lgamma(x) + torch.lgamma(y) - torch.lgamma(x + y)


def align_prior_torch(phoneme_count, mel_count, scaling=1.0):
    x = torch.arange(0, phoneme_count, dtype=torch.float64).unsqueeze(0)
    y = torch.arange(1, mel_count + 1, dtype=torch.float64).unsqueeze(1)
    a, b = scaling * y, scaling * (mel_count + 1 - y)
    n = torch.tensor([phoneme_count - 1], dtype=torch.float64)
    log_comb = torch.lgamma(n + 1) - torch.lgamma(x + 1) - torch.lgamma(n - x + 1)
    return (log_comb + log_beta(x + a, n - x + b) - log_beta(a, b)).exp().float()


align_prior = align_prior_scipy if VARIANT == "a" else align_prior_torch


class BalladSet(Dataset):
    def __init__(self, size):
        self.size = size
        rng = np.random.default_rng(7)
        self.text_lens = rng.integers(12, 41, size=512)
        self.mel_lens = rng.integers(60, 121, size=512)
        self.texts = [torch.from_numpy(rng.integers(1, N_SYMBOLS, size=n)) for n in self.text_lens]
        self.mels = [
            torch.from_numpy(rng.standard_normal((n, N_MEL), dtype=np.float32)) for n in self.mel_lens
        ]

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        i = i % 512
        prior = align_prior(int(self.text_lens[i]), int(self.mel_lens[i]))
        return self.texts[i], self.mels[i], prior


def collate(items):
    n_text = max(t.shape[0] for t, _, _ in items)
    n_mel = max(m.shape[0] for _, m, _ in items)
    text = torch.zeros(len(items), n_text, dtype=torch.long)
    mel = torch.zeros(len(items), n_mel, N_MEL)
    prior = torch.zeros(len(items), n_mel, n_text)
    mask = torch.zeros(len(items), n_mel)
    for k, (t, m, p) in enumerate(items):
        text[k, : len(t)], mel[k, : len(m)], mask[k, : len(m)] = t, m, 1.0
        prior[k, : p.shape[0], : p.shape[1]] = p
    return text, mel, prior, mask


class BalladNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(N_SYMBOLS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.key, self.query = nn.Linear(WIDTH, 128), nn.Linear(N_MEL, 128)
        self.decoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, N_MEL)

    def forward(self, text, mel, prior):
        h = self.embed(text)
        score = self.query(mel) @ self.key(h).transpose(1, 2) / 11.3 + torch.log(prior + 1e-8)
        attn = score.masked_fill((text == 0).unsqueeze(1), -1e9).softmax(-1)
        return self.out(self.decoder(attn @ h))


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        BalladSet(STEPS * BATCH),
        batch_size=BATCH,
        collate_fn=collate,
        num_workers=WORKERS,
        pin_memory=device.type == "cuda",
    )
    net = BalladNet().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step, batch in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        text, mel, prior, mask = (t.to(device, non_blocking=True) for t in batch)
        pred = net(text, mel, prior)
        loss = (F.l1_loss(pred, mel, reduction="none").mean(-1) * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
