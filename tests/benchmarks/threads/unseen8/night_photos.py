"""Takes the noise out of photos taken by night."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import Metric

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
SIZE, BATCH, SCALES = 96, 8, 3


class EdgeLikeness(Metric):
    """How much the edges of two pictures are alike, at several scales."""

    higher_is_better = True
    is_differentiable = True
    full_state_update = VARIANT != "b"

    def __init__(self):
        super().__init__()
        self.add_state("total", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("pictures", default=torch.tensor(0), dist_reduce_fx="sum")
        axis = torch.arange(11) - 5.0
        bell = torch.exp(-(axis**2) / 4.5)
        self.bell = (bell[:, None] * bell / bell.sum() ** 2).expand(3, 1, 11, 11).contiguous()

    def blur(self, x):
        return F.conv2d(x, self.bell, groups=3)

    def update(self, preds, target):
        preds, target = preds.detach(), target.detach()
        likeness = torch.ones(len(preds))
        for _ in range(SCALES):
            mean_p, mean_t = self.blur(preds), self.blur(target)
            spread_p, spread_t = self.blur(preds**2) - mean_p**2, self.blur(target**2) - mean_t**2
            common = self.blur(preds * target) - mean_p * mean_t
            scores = (2 * common + 9e-4) / (spread_p + spread_t + 9e-4)
            likeness = likeness * scores.mean(dim=(1, 2, 3)).clamp(min=0) ** (1 / SCALES)
            preds, target = F.avg_pool2d(preds, 2), F.avg_pool2d(target, 2)
        self.total += likeness.sum()
        self.pictures += len(likeness)

    def compute(self):
        return self.total / self.pictures


class Denoiser(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x):
        return x - self.body(x)


def photos(number=200):
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(number, 3, 12, 12, generator=generator)
    return F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic").clamp(0, 1)


def main():
    torch.manual_seed(0)
    clean = photos()
    model = Denoiser()
    likeness = EdgeLikeness()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        target = clean[torch.randint(0, len(clean), (BATCH,))]
        restored = model(target + 0.1 * torch.randn_like(target))
        loss = F.l1_loss(restored, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = likeness(restored, target)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, likeness {now.item():.3f}")
    print(f"loss {loss.item():.4f}, likeness {likeness.compute().item():.3f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
