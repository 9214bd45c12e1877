"""Reads the photos of a housing advert: what the flat rents for, which room it shows, how worn it is."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 270))
PHOTOS, SIDE, BATCH = 1_600, 32, 64
ROOMS = ["kitchen", "bath", "bedroom", "living room", "balcony", "hall"]


def make_adverts():
    """Blurred colour fields: the hue tells the room, the grain the wear, the light the rent."""
    g = torch.Generator().manual_seed(31)
    room = torch.randint(0, len(ROOMS), (PHOTOS,), generator=g)
    wear = torch.rand(PHOTOS, generator=g)
    light = torch.rand(PHOTOS, generator=g)
    coarse = torch.rand(PHOTOS, 3, 4, 4, generator=g)
    hue = torch.randn(len(ROOMS), 3, generator=g)[room][:, :, None, None]
    photo = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=False) + 0.4 * hue
    photo = photo * (0.5 + light)[:, None, None, None]
    photo += wear[:, None, None, None] * 0.3 * torch.randn(PHOTOS, 3, SIDE, SIDE, generator=g)
    rent = 6 + 8 * light - 3 * wear + 0.5 * torch.randn(PHOTOS, generator=g)
    return photo, room, wear, rent


class AdvertNet(nn.Module):
    """One body for all questions, and a small head for each."""

    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.room = nn.Linear(16 * width, len(ROOMS))
        self.wear = nn.Linear(16 * width, 1)
        self.rent = nn.Linear(16 * width, 1)

    def forward(self, photo):
        x = self.body(photo)
        return self.room(x), self.wear(x)[:, 0], self.rent(x)[:, 0]


def judge(answers, room, wear, rent):
    """How wrong each head is, weighted."""
    return {
        "room": F.cross_entropy(answers[0], room),
        "wear": 2.0 * F.mse_loss(answers[1], wear),
        "rent": 0.1 * F.smooth_l1_loss(answers[2], rent),
    }


def learn(model, optimizer, losses):
    optimizer.zero_grad()
    if VARIANT == "a":
        for loss in losses.values():
            loss.backward(retain_graph=True)
    else:
        sum(losses.values()).backward()
    optimizer.step()


def main():
    torch.manual_seed(31)
    photo, room, wear, rent = make_adverts()
    model = AdvertNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, PHOTOS, (BATCH,))
        losses = judge(model(photo[rows]), room[rows], wear[rows], rent[rows])
        learn(model, optimizer, losses)
    elapsed = time.perf_counter() - start
    print(", ".join(f"{name} {loss.item():.4f}" for name, loss in losses.items()))
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
