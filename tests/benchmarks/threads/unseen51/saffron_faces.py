"""Learn features of small face-like pictures with a softmax loss and a loss that pulls classes together."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))

PEOPLE = 60
SIZE = 20
FEATURES = 32
BATCH = 128
WEIGHT = 0.05


def make_faces(count, seed):
    """Noisy pictures of people, each with a smooth pattern of their own."""
    patterns = torch.randn(PEOPLE, 1, 5, 5, generator=torch.Generator().manual_seed(11))
    patterns = F.interpolate(patterns, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, PEOPLE, (count,), generator=generator)
    pictures = patterns[labels] + 0.7 * torch.randn(count, 1, SIZE, SIZE, generator=generator)
    return TensorDataset(pictures, labels)


class CenterLoss(nn.Module):
    """Mean squared distance of the features to the learned centre of their class."""

    def __init__(self, num_classes, feat_dim):
        super().__init__()
        self.num_classes = num_classes
        self.centers = nn.Parameter(torch.randn(num_classes, feat_dim))
        self.register_buffer("classes", torch.arange(num_classes))

    def forward(self, x, labels):
        batch_size = x.size(0)
        distmat = x.pow(2).sum(dim=1, keepdim=True).expand(batch_size, self.num_classes)
        distmat = distmat + self.centers.pow(2).sum(dim=1).expand(batch_size, self.num_classes)
        distmat = distmat - 2 * x @ self.centers.t()
        mask = labels.unsqueeze(1).expand(batch_size, self.num_classes).eq(self.classes)
        if VARIANT == "a":
            dist = []
            for i in range(batch_size):
                value = distmat[i][mask[i]]
                value = value.clamp(min=1e-12, max=1e12)
                dist.append(value)
            return torch.cat(dist).mean()
        dist = distmat.clamp(min=1e-12, max=1e12) * mask.float()
        return dist.sum() / batch_size


class FaceNet(nn.Module):
    """Convolutions in pairs, then features, then scores of the people."""

    def __init__(self, width=16):
        super().__init__()
        blocks, channels = [], 1
        for outer in (width, 2 * width):
            blocks += [nn.Conv2d(channels, outer, 3, padding=1), nn.PReLU()]
            blocks += [nn.Conv2d(outer, outer, 3, padding=1), nn.PReLU(), nn.MaxPool2d(2)]
            channels = outer
        self.blocks = nn.Sequential(*blocks)
        self.features = nn.Sequential(nn.Linear(channels * (SIZE // 4) ** 2, FEATURES), nn.PReLU())
        self.scores = nn.Linear(FEATURES, PEOPLE)

    def forward(self, pictures):
        features = self.features(self.blocks(pictures).flatten(1))
        return features, self.scores(features)


class AverageMeter:
    """Latest value and running mean."""

    def __init__(self):
        self.value, self.total, self.count = 0.0, 0.0, 0

    def update(self, value, count=1):
        self.value = value
        self.total += value * count
        self.count += count

    @property
    def average(self):
        return self.total / max(self.count, 1)


@torch.no_grad()
def test(model, loader):
    """Share of test pictures given to the right person."""
    model.eval()
    right = [(model(pictures)[1].argmax(dim=1) == labels).float() for pictures, labels in loader]
    model.train()
    return torch.cat(right).mean().item()


def main():
    torch.manual_seed(0)
    shuffle = torch.Generator().manual_seed(1)
    train_loader = DataLoader(
        make_faces(12_800, 2), batch_size=BATCH, shuffle=True, drop_last=True, generator=shuffle
    )
    test_loader = DataLoader(make_faces(512, 3), batch_size=256)
    model = FaceNet()
    center_loss = CenterLoss(PEOPLE, FEATURES)
    optimizer_model = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    optimizer_center = torch.optim.SGD(center_loss.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer_model, step_size=1000, gamma=0.5)
    meters = {name: AverageMeter() for name in ("softmax", "center", "all")}
    warm = min(10, STEPS // 2)
    step = 0
    while step < STEPS:
        for pictures, labels in train_loader:
            if step == STEPS:
                break
            if step == warm:
                start = time.perf_counter()
            features, scores = model(pictures)
            loss_softmax = F.cross_entropy(scores, labels)
            loss_center = center_loss(features, labels)
            loss = loss_softmax + WEIGHT * loss_center
            optimizer_model.zero_grad()
            optimizer_center.zero_grad()
            loss.backward()
            optimizer_model.step()
            for value in center_loss.parameters():
                value.grad.mul_(1.0 / WEIGHT)
            optimizer_center.step()
            schedule.step()
            for name, value in (("softmax", loss_softmax), ("center", loss_center), ("all", loss)):
                meters[name].update(value.item(), len(labels))
            step += 1
            if step % 400 == 0:
                means = " ".join(f"{name} {meter.average:.4f}" for name, meter in meters.items())
                print(f"step {step} {means} test {test(model, test_loader):.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
