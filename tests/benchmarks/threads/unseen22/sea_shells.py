"""Features of sea shells learned without labels: two views of each photo shall agree (SimCLR)."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 350))
BATCH = int(os.environ.get("BATCH", 1024))
WIDTH = int(os.environ.get("WIDTH", 48))
SIZE = int(os.environ.get("SIZE", 128))
SIDE, HEAT = 32, 0.2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.skip = nn.Conv2d(before, after, 1, stride) if before != after else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ShellNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, WIDTH, 3, 1, 1)]
        for before, after, stride in ((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)):
            layers.append(Residual(before * WIDTH, after * WIDTH, stride))
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(4 * WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, SIZE))

    def forward(self, x):
        return self.head(self.body(x))


class AgreementLoss(nn.Module):
    """Each view shall be more alike to its sibling than to any other."""

    def __init__(self):
        super().__init__()
        self.cosine = nn.CosineSimilarity(dim=-1)
        order = torch.arange(2 * BATCH, device=device)
        self.sibling = (order + BATCH) % (2 * BATCH)
        self.itself = torch.eye(2 * BATCH, dtype=torch.bool, device=device)

    def likeness(self, x):
        if VARIANT == "b":
            x = F.normalize(x, dim=-1)
            return x @ x.T
        return self.cosine(x.unsqueeze(1), x.unsqueeze(0))

    def forward(self, features):
        scores = self.likeness(features) / HEAT
        return F.cross_entropy(scores.masked_fill(self.itself, -1e9), self.sibling)


def two_views(photos):
    """Each photo twice: mirrored or not, brighter or darker, a little noise."""
    twice = torch.cat([photos, photos.flip(-1)])
    light = 0.6 + 0.8 * torch.rand(len(twice), 1, 1, 1, device=device)
    return twice * light + 0.1 * torch.randn_like(twice)


def main():
    torch.manual_seed(71)
    model = ShellNet().to(device, memory_format=torch.channels_last)
    agreement = AgreementLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    photos = torch.rand(8 * BATCH, 3, SIDE, SIDE, device=device)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        views = two_views(photos[step % 8 * BATCH : (step % 8 + 1) * BATCH])
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            features = model(views.contiguous(memory_format=torch.channels_last))
        loss = agreement(features.float())
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
