"""Trains a small network that hears whether a frog calls, and reports its AUROC with an error bar."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1500"))

BANDS, FRAMES, RESAMPLES = 32, 48, 150


def checked(truth, scores):
    truth, scores = np.ravel(truth), np.ravel(scores).astype(np.float64)
    if truth.shape != scores.shape:
        raise ValueError("truth and scores differ in length")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    classes = np.unique(truth)
    if len(classes) != 2:
        raise ValueError("both classes must be present")
    return truth == classes[1], scores


def roc_curve(truth, scores):
    """False and true positives at the thresholds where the curve bends."""
    truth, scores = checked(truth, scores)
    order = np.argsort(scores, kind="mergesort")[::-1]
    truth, scores = truth[order], scores[order]
    ends = np.r_[np.where(np.diff(scores))[0], truth.size - 1]
    true = np.cumsum(truth, dtype=np.float64)[ends]
    if not np.isclose(true[-1], truth.sum()):
        raise ValueError("counts do not add up")
    false = 1 + ends - true
    bends = np.where(np.r_[True, np.logical_or(np.diff(false, 2), np.diff(true, 2)), True])[0]
    return np.r_[0, false[bends]], np.r_[0, true[bends]]


def auroc(truth, scores):
    false, true = roc_curve(truth, scores)
    if (np.diff(false) < 0).any():
        raise ValueError("false positives must not fall")
    return float(np.trapezoid(true / true[-1], false / false[-1]))


def auroc_rows(truth, scores):
    """The same for each row of two matrices."""
    truth = truth.gather(1, scores.argsort(dim=1))
    positive = truth.sum(1)
    negative = truth.shape[1] - positive
    rank = torch.arange(1, truth.shape[1] + 1, dtype=truth.dtype)
    return (truth @ rank - positive * (positive + 1) / 2) / (positive * negative)


def auroc_with_error(truth, scores, generator):
    """AUROC and the standard deviation of it over resampled recordings."""
    picks = torch.randint(0, len(truth), (RESAMPLES, len(truth)), generator=generator)
    if VARIANT == "a":
        drawn = [auroc(truth[pick].numpy(), scores[pick].numpy()) for pick in picks]
        return auroc(truth.numpy(), scores.numpy()), float(np.std(drawn))
    drawn = auroc_rows(truth[picks].float(), scores[picks])
    return float(auroc_rows(truth[None].float(), scores[None])), float(drawn.std(correction=0))


class CallNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(BANDS, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2, stride=2), nn.BatchNorm1d(width), nn.ReLU(),
        )  # fmt: skip
        self.out = nn.Linear(2 * width, 1)

    def forward(self, x):
        h = self.conv(x)
        return self.out(torch.cat([h.mean(2), h.amax(2)], dim=1)).squeeze(1)


def marsh(count, generator):
    x = torch.randn(count, BANDS, FRAMES, generator=generator)
    calling = torch.rand(count, generator=generator) < 0.4
    onset = torch.randint(0, FRAMES - 12, (count,), generator=generator)
    for i in torch.nonzero(calling).flatten().tolist():
        x[i, 8:14, onset[i] : onset[i] + 12] += 0.5
    return x, calling


torch.manual_seed(61)
generator = torch.Generator().manual_seed(62)
resampling = torch.Generator().manual_seed(63)
sounds, calling = marsh(4000, generator)
kept_sounds, kept_calling = marsh(400, generator)
model = CallNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
reports = []
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        start = time.perf_counter()
    rows = torch.randint(0, len(sounds), (64,), generator=generator)
    loss = F.binary_cross_entropy_with_logits(model(sounds[rows]), calling[rows].float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        model.eval()
        with torch.no_grad():
            scores = model(kept_sounds)
        reports.append((step, *auroc_with_error(kept_calling, scores, resampling)))
        model.train()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
