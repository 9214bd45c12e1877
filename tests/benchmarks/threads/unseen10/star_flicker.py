"""Sorts variable stars by the shape of their light curves in two colours."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1700))
STARS, LENGTH, COLOURS, BATCH = 1000, 4400, 2, 32
KINDS = ["steady", "pulsating", "eclipsing", "flaring", "spotted"]


def make_curves():
    """Brightness counts of many stars, some bright and some faint, with a few wild readings."""
    rng = np.random.default_rng(5)
    kinds = rng.integers(0, len(KINDS), STARS)
    time_of = np.linspace(0, 27, LENGTH)
    curves = np.empty((STARS, COLOURS, LENGTH), np.float32)
    for star, kind in enumerate(kinds):
        phase = (time_of / rng.uniform(0.4, 6) + rng.uniform()) % 1
        shape = [
            0 * phase,
            0.03 * (np.abs(phase - 0.3) ** 0.7),
            -0.08 * (np.abs(phase - 0.5) < 0.06),
            0.2 * np.exp(-60 * ((3 * phase) % 1)),
            0.02 * np.sin(2 * np.pi * phase) + 0.01 * np.sin(4 * np.pi * phase),
        ][kind]
        for colour in range(COLOURS):
            noise = rng.standard_normal(LENGTH) * 0.01
            wild = (rng.random(LENGTH) < 0.002) * rng.normal(0, 0.5, LENGTH)
            curves[star, colour] = (1 + shape * (1 - 0.3 * colour) + noise + wild) * 10 ** rng.uniform(2, 5)
    return torch.from_numpy(curves), torch.from_numpy(kinds)


class RobustScale(nn.Module):
    """Puts the middle of each curve at 0 and its quartiles one unit apart."""

    def __init__(self):
        super().__init__()
        self.register_buffer("levels", torch.tensor([0.25, 0.5, 0.75]))

    def marks(self, curves):
        if VARIANT == "a":
            return curves.quantile(self.levels, dim=-1, keepdim=True)
        found = np.quantile(curves.numpy(), self.levels.numpy(), axis=-1, keepdims=True)
        return torch.from_numpy(found).to(curves.dtype)

    def forward(self, curves):
        low, middle, high = self.marks(curves)
        return ((curves - middle) / (high - low).clamp_min(1e-6)).clamp(-20, 20)


class CurveNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.scale = RobustScale()
        layers, inputs = [], COLOURS
        for n in range(4):
            outputs = width * min(2**n, 4) // 2
            convolution = nn.Conv1d(inputs, outputs, 9, stride=3 if n else 8, padding=4)
            layers += [convolution, nn.BatchNorm1d(outputs), nn.ReLU()]
            inputs = outputs
        self.body = nn.Sequential(*layers)
        self.memory = nn.GRU(inputs, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, len(KINDS))

    def forward(self, curves):
        features = self.body(self.scale(curves)).transpose(1, 2)
        states, _ = self.memory(features)
        return self.head(states.amax(1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    curves, kinds = make_curves()
    model = CurveNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, STARS, (BATCH,))
        first = int(torch.randint(0, 400, ()))
        scores = model(curves[rows, :, first : first + LENGTH - 400])
        loss = F.cross_entropy(scores, kinds[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
