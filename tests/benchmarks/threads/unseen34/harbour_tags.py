"""Tags harbour sounds (several labels per clip) from mel spectrograms, with a score over the whole epoch."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "600"))
EPOCH = int(os.environ.get("EPOCH", "200"))
BATCH = int(os.environ.get("BATCH", "256"))
TAGS = int(os.environ.get("TAGS", "527"))
FRAMES = int(os.environ.get("FRAMES", "160"))
WIDTH = int(os.environ.get("WIDTH", "64"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class EpochScore:
    """Score that needs all outputs of an epoch; they are collected on the CPU."""

    def __init__(self, compute_fn):
        self.compute_fn = compute_fn
        self.reset()

    def reset(self):
        if VARIANT == "a":
            self.predictions = torch.tensor([], dtype=torch.float32)
            self.targets = torch.tensor([], dtype=torch.long)
        else:
            self.predictions, self.targets = [], []

    def update(self, y_pred, y):
        y_pred, y = y_pred.detach(), y.detach()
        if y_pred.ndimension() == 2 and y_pred.shape[1] == 1:
            y_pred, y = y_pred.squeeze(-1), y.squeeze(-1)
        if isinstance(self.predictions, list):
            self.predictions.append(y_pred.to("cpu", torch.float32))
            self.targets.append(y.to("cpu", torch.long))
        else:
            y_pred, y = y_pred.to(self.predictions), y.to(self.targets)
            self.predictions = torch.cat([self.predictions, y_pred], dim=0)
            self.targets = torch.cat([self.targets, y], dim=0)

    def compute(self):
        if isinstance(self.predictions, list):
            return self.compute_fn(torch.cat(self.predictions), torch.cat(self.targets))
        return self.compute_fn(self.predictions, self.targets)


def hit_rate(scores, targets):
    """How often the tag with the highest score is one of the clip's tags."""
    return targets.gather(1, scores.argmax(1, keepdim=True)).float().mean().item()


class ToneBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = F.relu(self.norm2(self.conv2(x)), inplace=True)
        return F.avg_pool2d(x, 2)


class HarbourCNN(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [1, WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH]
        self.blocks = nn.Sequential(*[ToneBlock(a, b) for a, b in zip(widths, widths[1:])])
        self.fc, self.out = nn.Linear(8 * WIDTH, 1024), nn.Linear(1024, TAGS)

    def forward(self, x):
        x = self.blocks(x).mean(3)
        x = x.amax(2) + x.mean(2)
        return self.out(F.relu(self.fc(x)))


torch.manual_seed(0)
model = HarbourCNN().to(device, memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
clips = torch.randn(4 * BATCH, 1, 64, FRAMES, device=device)
labels = (torch.rand(4 * BATCH, TAGS, device=device) < 0.01).float()
score = EpochScore(hit_rate)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    rows = torch.randint(len(clips), (BATCH,), device=device)
    x, y = clips[rows].contiguous(memory_format=torch.channels_last), labels[rows]
    with torch.autocast(device.type, torch.bfloat16):
        logits = model(x)
    loss = F.binary_cross_entropy_with_logits(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    score.update(torch.sigmoid(logits.float()), y)
    if (step + 1) % EPOCH == 0:
        print(f"epoch {(step + 1) // EPOCH}: hit rate {score.compute():.4f}")
        score.reset()
if device.type == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
