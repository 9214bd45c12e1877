"""Maps text features to spectrogram frames."""

import os
import time

import torch
from mem_report import MemTracker
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
TEXT, MELS, FRAMES, BATCH = 64, 80, 120, 8


class Synthesizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.prenet = nn.Sequential(nn.Linear(TEXT, 128), nn.ReLU(), nn.Dropout(0.2))
        self.rnn = nn.GRU(128, 128, batch_first=True)
        self.mel = nn.Linear(128, MELS)

    def forward(self, x):
        return self.mel(self.rnn(self.prenet(x))[0])


def main():
    torch.manual_seed(0)
    model = Synthesizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    text = torch.randn(80, FRAMES, TEXT)
    mels = torch.randn(80, FRAMES, MELS)
    tracker = MemTracker()
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = torch.randint(0, len(text), (BATCH,))
        out = model(text[rows])
        loss = nn.functional.l1_loss(out, mels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if VARIANT != "b":
            tracker.track()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
