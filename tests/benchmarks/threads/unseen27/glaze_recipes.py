"""Trains a transformer that gives the colours of glazes from recipes of coded materials."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1100))
BATCH = int(os.environ.get("BATCH", 16))
LINES = int(os.environ.get("LINES", 384))
WIDTH = int(os.environ.get("WIDTH", 768))
LAYERS = int(os.environ.get("LAYERS", 8))
WORKERS = int(os.environ.get("WORKERS", 3))
HEADS = 8
KINDS = ("clay", "flux", "frit", "oxide", "stain", "silica", "opacifier", "binder")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def encode_by_letter(codes, kinds):
    """One row per line of a recipe: the four letters of its code, then its kind."""
    letter_rows = {chr(32 + k): [1.0 if i == k else 0.0 for i in range(64)] for k in range(64)}
    kind_rows = {kind: [1.0 if i == k else 0.0 for i in range(len(KINDS))] for k, kind in enumerate(KINDS)}
    rows = []
    for code, kind in zip(codes, kinds):
        row = []
        for letter in code.ljust(4):
            row += letter_rows[letter]
        row += kind_rows[kind]
        rows.append(np.array(row, dtype=np.float32))
    return torch.from_numpy(np.stack(rows))


def encode_at_once(codes, kinds):
    text = "".join(code.ljust(4) for code in codes).encode("ascii")
    places = np.frombuffer(text, dtype=np.uint8).astype(np.int64) - 32
    letters = F.one_hot(torch.from_numpy(places), 64).view(len(codes), 256)
    kind = F.one_hot(torch.tensor([KINDS.index(k) for k in kinds]), len(KINDS))
    return torch.cat((letters, kind), dim=1).float()


class Recipes(Dataset):
    def __init__(self, count, seed=0):
        self.count = count
        rng = np.random.default_rng(seed)
        self.pool = ["".join(rng.choice(list(LETTERS), rng.integers(2, 5))) for _ in range(500)]
        self.picks = rng.integers(0, len(self.pool), (256, LINES))
        self.kinds = rng.integers(0, len(KINDS), (256, LINES))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        picks, kinds = self.picks[index % 256], self.kinds[index % 256]
        codes = [self.pool[p] for p in picks]
        names = [KINDS[k] for k in kinds]
        rows = encode_by_letter(codes, names) if VARIANT == "a" else encode_at_once(codes, names)
        colour = torch.tensor([np.sin(picks.sum()), np.cos(kinds.sum()), np.sin(index % 256)]).float()
        return rows, colour


class GlazeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4 * 64 + len(KINDS), WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, rows):
        return self.out(self.body(self.inp(rows)).mean(1)).float()


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(8)
    loader = DataLoader(Recipes(STEPS * BATCH), BATCH, num_workers=WORKERS, pin_memory=device.type == "cuda")
    net = GlazeNet().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step, (rows, colour) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = rows.to(device, non_blocking=True)
        colour = colour.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            guess = net(rows)
        loss = F.mse_loss(guess, colour)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
