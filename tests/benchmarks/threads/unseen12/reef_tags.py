"""What can be seen on photographs of reefs: several tags each, the rare ones as often as the common ones."""

import os
import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1000))
BATCH = int(os.environ.get("BATCH", 64))
WIDTH = int(os.environ.get("WIDTH", 128))
PHOTOS = int(os.environ.get("PHOTOS", 6000))
WORKERS = int(os.environ.get("WORKERS", 6))
TAGS, SIDE = 48, 96
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Reef(Dataset):
    def __init__(self, count):
        self.photos = torch.randint(0, 256, (count, 3, SIDE, SIDE), dtype=torch.uint8)
        rarity = torch.logspace(-0.7, -2.3, TAGS)
        self.tags = (torch.rand(count, TAGS) < rarity).long()
        self.tags[torch.arange(count), torch.randint(0, TAGS, (count,))] = 1

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, k):
        photo = self.photos[k].float() / 255 - 0.5
        if k % 2:
            photo = photo.flip(-1)
        return photo, self.tags[k].float()


class RareFirst(Sampler):
    """Draws a photograph of the tag that was seen least so far."""

    def __init__(self, tags, length):
        self.tags, self.length = tags, length
        self.members = [torch.nonzero(tags[:, t])[:, 0].tolist() for t in range(tags.shape[1])]
        self.counts = torch.zeros(tags.shape[1], dtype=torch.long)

    def __len__(self):
        return self.length

    def __iter__(self):
        for _ in range(self.length):
            tag = int(self.counts.argmin())
            chosen = random.choice(self.members[tag])
            self.note(chosen)
            yield chosen

    def note(self, chosen):
        if VARIANT == "b":
            self.counts += self.tags[chosen]
            return
        for tag, present in enumerate(self.tags[chosen]):
            if present == 1:
                self.counts[tag] += 1


class Unit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


def net():
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 5, 2, 2),
        *[Unit(WIDTH) for _ in range(3)],
        nn.Conv2d(WIDTH, 2 * WIDTH, 3, 2, 1),
        *[Unit(2 * WIDTH) for _ in range(4)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * WIDTH, TAGS),
    )


def main():
    torch.manual_seed(3)
    random.seed(3)
    reef = Reef(PHOTOS)
    loader = DataLoader(
        reef,
        batch_size=BATCH,
        sampler=RareFirst(reef.tags, STEPS * BATCH),
        num_workers=WORKERS,
        pin_memory=device.type == "cuda",
        prefetch_factor=4 if WORKERS else None,
    )
    model = net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    for step, (photos, tags) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        photos, tags = photos.to(device, non_blocking=True), tags.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(photos)
        loss = F.binary_cross_entropy_with_logits(scores.float(), tags)
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
