"""Quantile forecasts of many related series with a temporal fusion transformer."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

BATCH, PAST, FUTURE = (8, 12, 4) if SMALL else (64, 48, 12)
HIDDEN, CONTINUOUS, HEADS = 16, 8, 4
REALS_PAST = ["load", "wind", "cloud", "rain", "pressure", "price"]
REALS_KNOWN = ["hour", "weekday", "holiday", "trend"]
QUANTILES = torch.tensor((0.1, 0.25, 0.5, 0.75, 0.9), device=device)


class EmbeddingResize(nn.Module):
    """Brings the embedding of one variable to the width of the network."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.width_out = width_out
        if VARIANT != "a":
            corners = F.interpolate(
                torch.eye(width_in).unsqueeze(1), width_out, mode="linear", align_corners=True
            )
            self.register_buffer("weight", corners.squeeze(1).t().contiguous())

    def forward(self, x):
        if VARIANT != "a":
            return F.linear(x, self.weight)
        flat = x.contiguous().view(-1, 1, x.shape[-1])
        flat = F.interpolate(flat, self.width_out, mode="linear", align_corners=True)
        return flat.view(*x.shape[:-1], self.width_out)


class ResizeNorm(nn.Module):
    """Resizes where the widths differ, weighs each channel and normalises."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.resize = EmbeddingResize(width_in, width_out) if width_in != width_out else nn.Identity()
        self.mask = nn.Parameter(torch.zeros(width_out))
        self.norm = nn.LayerNorm(width_out)

    def forward(self, x):
        x = self.resize(x)
        return self.norm(x * torch.sigmoid(self.mask) * 2.0)


class GatedResidual(nn.Module):
    """Gated residual network of the paper."""

    def __init__(self, width_in, hidden, width_out, dropout=0.0):
        super().__init__()
        self.skip = ResizeNorm(width_in, width_out) if width_in != width_out else nn.Identity()
        self.fc1 = nn.Linear(width_in, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.gate = nn.Linear(hidden, 2 * width_out)
        self.norm = nn.LayerNorm(width_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.fc2(F.elu(self.fc1(x)))
        return self.norm(F.glu(self.gate(self.dropout(h)), dim=-1) + self.skip(x))


class VariableSelection(nn.Module):
    """Weighs the variables against each other at each time step."""

    def __init__(self, widths):
        super().__init__()
        self.names = list(widths)
        self.flattened = GatedResidual(sum(widths.values()), min(HIDDEN, len(widths)), len(widths))
        self.single = nn.ModuleDict(
            {name: GatedResidual(width, min(width, HIDDEN), HIDDEN) for name, width in widths.items()}
        )

    def forward(self, embedded):
        weights = self.flattened(torch.cat([embedded[n] for n in self.names], dim=-1)).softmax(dim=-1)
        outputs = torch.stack([self.single[n](embedded[n]) for n in self.names], dim=-1)
        return (outputs * weights.unsqueeze(-2)).sum(dim=-1)


class FusionTransformer(nn.Module):
    """Variable selection, an LSTM over past and future, then attention."""

    def __init__(self, series):
        super().__init__()
        self.scalers = nn.ModuleDict({n: nn.Linear(1, CONTINUOUS) for n in REALS_PAST + REALS_KNOWN})
        self.series = nn.Embedding(series, 12)
        past = {n: CONTINUOUS for n in REALS_PAST + REALS_KNOWN} | {"series": 12}
        self.select_past = VariableSelection(past)
        self.select_known = VariableSelection({n: CONTINUOUS for n in REALS_KNOWN})
        self.encoder = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.decoder = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.enrich = GatedResidual(HIDDEN, HIDDEN, HIDDEN)
        self.attend = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
        self.after = GatedResidual(HIDDEN, HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, len(QUANTILES))

    def forward(self, past, known, series):
        embedded = {n: self.scalers[n](past[..., i, None]) for i, n in enumerate(REALS_PAST + REALS_KNOWN)}
        embedded["series"] = self.series(series)[:, None].expand(-1, past.shape[1], -1)
        future = {n: self.scalers[n](known[..., i, None]) for i, n in enumerate(REALS_KNOWN)}
        encoded, state = self.encoder(self.select_past(embedded))
        decoded, _ = self.decoder(self.select_known(future), state)
        memory = self.enrich(torch.cat([encoded, decoded], dim=1))
        queries = memory[:, past.shape[1] :]
        attended, _ = self.attend(queries, memory, memory, need_weights=False)
        return self.head(self.after(attended + queries))


def to_device(array):
    """Copies an array or a tensor of the host without waiting for the copy."""
    tensor = torch.as_tensor(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device == "cuda" else tensor


class Windows:
    """Draws windows of past and future out of all series, a batch at once."""

    def __init__(self, series, length, seed):
        rng = np.random.default_rng(seed)
        hours = np.arange(length)
        phase = rng.uniform(0, 6.28, (series, 1, 1))
        waves = np.sin(hours[None, :, None] * 0.2617 + phase + np.arange(10) * 0.7)
        self.values = (waves + 0.3 * rng.standard_normal((series, length, 10))).astype(np.float32)
        self.rng = rng

    def batch(self):
        rows = self.rng.integers(0, self.values.shape[0], BATCH)
        starts = self.rng.integers(0, self.values.shape[1] - PAST - FUTURE, BATCH)
        window = self.values[rows[:, None], starts[:, None] + np.arange(PAST + FUTURE)]
        window = to_device(window)
        return window[:, :PAST], window[:, PAST:, 6:], to_device(rows), window[:, PAST:, 0]


def quantile_loss(prediction, target):
    """Pinball loss over all quantiles."""
    error = target.unsqueeze(-1) - prediction
    return torch.maximum(QUANTILES * error, (QUANTILES - 1) * error).mean()


def evaluate(model, windows):
    """Mean loss of two batches that are not trained on."""
    model.eval()
    with torch.no_grad():
        losses = []
        for _ in range(2):
            past, known, series, target = windows.batch()
            losses.append(quantile_loss(model(past, known, series), target))
    model.train()
    return torch.stack(losses).mean().item()


def main():
    torch.manual_seed(0)
    series = 40 if SMALL else 370
    train, held_out = Windows(series, 1500, 1), Windows(series, 500, 2)
    model = FusionTransformer(series).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(STEPS, 1))
    warm = min(10, STEPS // 2)
    start, last = time.perf_counter(), None
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        past, known, series_ids, target = train.batch()
        last = quantile_loss(model(past, known, series_ids), target)
        optimizer.zero_grad(set_to_none=True)
        last.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 500 == 499:
            print(f"step {step + 1} held out {evaluate(model, held_out):.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
