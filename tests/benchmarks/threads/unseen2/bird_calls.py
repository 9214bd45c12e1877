"""Names birds by their calls; recordings come at 44.1 kHz and are brought to 16 kHz."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
CLIPS, BIRDS, BATCH = 120, 10, 8


class ResampleFrac(nn.Module):
    """A bank of windowed sinc filters, one for each phase of the new rate."""

    def __init__(self, old_sr, new_sr, zeros=16, rolloff=0.945):
        super().__init__()
        gcd = math.gcd(old_sr, new_sr)
        self.old_sr, self.new_sr = old_sr // gcd, new_sr // gcd
        sr = min(self.new_sr, self.old_sr) * rolloff
        self.width = math.ceil(zeros * self.old_sr / sr)
        index = torch.arange(-self.width, self.width + self.old_sr).float()
        kernels = []
        for i in range(self.new_sr):
            t = ((-i / self.new_sr + index / self.old_sr) * sr).clamp_(-zeros, zeros) * math.pi
            window = torch.cos(t / zeros / 2) ** 2
            kernel = torch.where(t == 0, torch.ones(()), torch.sin(t) / t) * window
            kernels.append(kernel / kernel.sum())
        self.register_buffer("kernel", torch.stack(kernels)[:, None])

    def forward(self, x):
        x = F.pad(x[None, None], (self.width, self.width + self.old_sr))
        return F.conv1d(x, self.kernel, stride=self.old_sr).transpose(1, 2).flatten()


RESAMPLERS = {}


def resample(x, old_sr, new_sr):
    if VARIANT == "b":
        if (old_sr, new_sr) not in RESAMPLERS:
            RESAMPLERS[old_sr, new_sr] = ResampleFrac(old_sr, new_sr)
        return RESAMPLERS[old_sr, new_sr](x)
    return ResampleFrac(old_sr, new_sr)(x)


class Calls(Dataset):
    def __init__(self):
        self.clips = torch.randn(CLIPS, 33075, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return CLIPS

    def __getitem__(self, i):
        return resample(self.clips[i], 44100, 16000)[:12000], i % BIRDS


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 32, 80, 16), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 96, 9, 2),
            nn.BatchNorm1d(96), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(96, 96, 3), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(96, BIRDS)

    def forward(self, x):
        return self.head(self.body(x[:, None]).mean(-1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Calls(), batch_size=BATCH, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while step < STEPS:
        for x, y in loader:
            if step == 5:
                start = time.perf_counter()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
