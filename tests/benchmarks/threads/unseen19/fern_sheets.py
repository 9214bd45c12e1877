"""Tells ferns apart by scans of pressed leaves, bent a little differently each time."""

import os
import time

import numpy as np
import torch
from scipy import ndimage
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
SHEETS, SIDE, KINDS, BATCH = 320, 80, 8, 16
SMOOTHNESS = 3 if VARIANT == "a" else 0


def make_sheets():
    """Fronds with more or fewer leaflets, long or short."""
    rng = np.random.default_rng(17)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    kinds = rng.integers(0, KINDS, SHEETS)
    leaflets, length = 9 + 4 * (kinds % 4), 0.45 + 0.3 * (kinds // 4)
    angle = rng.normal(0, 0.3, SHEETS)
    sheets = np.empty((SHEETS, SIDE, SIDE), np.float32)
    for i in range(SHEETS):
        along = y * np.cos(angle[i]) + x * np.sin(angle[i])
        across = x * np.cos(angle[i]) - y * np.sin(angle[i])
        edge = length[i] * (1 - along**2) * (0.6 + 0.4 * np.sin(leaflets[i] * along))
        sheets[i] = (np.abs(across) < edge) + rng.normal(0, 0.2, (SIDE, SIDE))
    return sheets, kinds


class Sheets(Dataset):
    """Shifts each dot of the scan by a smooth random field."""

    def __init__(self, sheets, kinds, reach=4.0):
        self.sheets, self.kinds, self.reach = sheets, kinds, reach
        self.rng = np.random.default_rng(18)
        self.grid = np.mgrid[:SIDE, :SIDE].astype(np.float32)

    def __len__(self):
        return len(self.sheets)

    def bend(self, sheet):
        coarse = self.rng.normal(0, self.reach, (2, 6, 6)).astype(np.float32)
        field = np.stack([ndimage.zoom(part, SIDE / 6, order=1) for part in coarse])
        return ndimage.map_coordinates(sheet, self.grid + field, order=SMOOTHNESS, mode="nearest")

    def __getitem__(self, index):
        sheet = self.bend(self.sheets[index])
        if self.rng.random() < 0.5:
            sheet = sheet[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(sheet))[None], int(self.kinds[index])


def block(into, out):
    return nn.Sequential(
        nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)
    )


class FernNet(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.body = nn.Sequential(
            block(1, width), block(width, 2 * width), block(2 * width, 4 * width), block(4 * width, 4 * width)
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * width, KINDS))

    def forward(self, sheets):
        return self.head(self.body(sheets).mean((2, 3)))


def main():
    torch.manual_seed(17)
    loader = DataLoader(Sheets(*make_sheets()), batch_size=BATCH, shuffle=True)
    model = FernNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for sheets, kinds in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.cross_entropy(model(sheets), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
